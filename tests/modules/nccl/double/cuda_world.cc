// The tests' side of libcuda_double.so, and the work of its functions on the devices.
#include "modules/nccl/double/cuda_world.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace hvddouble {

CudaWorld& cuda_world() {
  static auto* const instance = new CudaWorld;
  return *instance;
}

std::vector<CuContext>& context_stack() {
  static thread_local std::vector<CuContext> stack;
  return stack;
}

Context* current() {
  return context_stack().empty() ? nullptr : reinterpret_cast<Context*>(context_stack().back());
}

Stream* find_stream(CuStream handle) {
  CudaWorld& w = cuda_world();
  if (reinterpret_cast<uintptr_t>(handle) <= 1) {
    if (current() == nullptr) return nullptr;
    auto& stream = w.default_streams[current()->device];
    if (stream == nullptr) stream = std::make_unique<Stream>(current()->device);
    return stream.get();
  }
  const auto found = w.streams.find(handle);
  return found == w.streams.end() ? nullptr : found->second.get();
}

const std::pair<const uintptr_t, Memory>* find_memory(uintptr_t at) {
  CudaWorld& w = cuda_world();
  auto next = w.memory.upper_bound(at);
  if (next == w.memory.begin()) return nullptr;
  --next;
  return at < next->first + next->second.size ? &*next : nullptr;
}

void* add_memory(size_t size, int device, bool counted) {
  void* const memory = std::malloc(std::max<size_t>(size, 1));
  const std::lock_guard lock(cuda_world().mutex);
  cuda_world().memory[reinterpret_cast<uintptr_t>(memory)] = {std::max<size_t>(size, 1), device, counted};
  return memory;
}

CuResult drop_memory(uintptr_t at, const char* what) {
  {
    const std::lock_guard lock(cuda_world().mutex);
    if (cuda_world().memory.erase(at) == 0) {
      cuda_world().violations.push_back(std::string(what) + " of what was not allocated");
      return kInvalidValue;
    }
  }
  std::free(reinterpret_cast<void*>(at));
  return 0;
}

CuResult copy_async(void* to, const void* from, size_t size, CuStream stream, const void* on_device) {
  CudaWorld& w = cuda_world();
  const std::lock_guard lock(w.mutex);
  Stream* const s = find_stream(stream);
  if (s == nullptr) return kInvalidHandle;
  const auto* memory = find_memory(reinterpret_cast<uintptr_t>(on_device));
  if (memory == nullptr || memory->second.device != s->device ||
      reinterpret_cast<uintptr_t>(on_device) + size > memory->first + memory->second.size) {
    w.violations.push_back("a copy touches what is no memory of the stream's device");
    return kInvalidValue;
  }
  s->add([=] { std::memcpy(to, from, size); });
  return 0;
}

void reset() {
  CudaWorld& w = cuda_world();
  const std::lock_guard lock(w.mutex);
  w.calls.clear();
  w.violations.clear();
  w.fail_at = -1;
  w.fail_name.clear();
}
std::vector<std::string> calls() {
  const std::lock_guard lock(cuda_world().mutex);
  return cuda_world().calls;
}
int64_t call_count() {
  const std::lock_guard lock(cuda_world().mutex);
  return static_cast<int64_t>(cuda_world().calls.size());
}
void fail_call(int64_t number) {
  const std::lock_guard lock(cuda_world().mutex);
  cuda_world().fail_at = number;
}
void fail_function(const std::string& name, int result) {
  const std::lock_guard lock(cuda_world().mutex);
  cuda_world().fail_name = name;
  cuda_world().fail_result = result;
}
std::vector<std::string> violations() {
  const std::lock_guard lock(cuda_world().mutex);
  return cuda_world().violations;
}
void set_device_count(int count) {
  const std::lock_guard lock(cuda_world().mutex);
  cuda_world().devices = count;
}

std::string alive() {
  CudaWorld& w = cuda_world();
  const std::lock_guard lock(w.mutex);
  std::string text;
  const auto add = [&](const char* what, long count) {
    if (count != 0) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
  };
  int contexts = 0, pinned = 0, device = 0;
  for (const auto& [d, context] : w.contexts) contexts += context.retained;
  for (const auto& [at, memory] : w.memory) (memory.device < 0 ? pinned : device) += memory.counted ? 1 : 0;
  add("contexts", contexts);
  add("streams", static_cast<long>(w.streams.size() - w.own_streams.size()));
  add("events", static_cast<long>(w.events.size()));
  add("blocks of pinned memory", pinned);
  add("blocks of device memory", device);
  add("communicators", w.communicators);
  return text;
}

void* device_memory(size_t size, int device) { return add_memory(size, device, false); }
void free_device_memory(void* memory) {
  drop_memory(reinterpret_cast<uintptr_t>(memory), "free_device_memory");
}

CuStream make_stream(int device) {
  CudaWorld& w = cuda_world();
  auto stream = std::make_unique<Stream>(device);
  const auto handle = reinterpret_cast<CuStream>(stream.get());
  const std::lock_guard lock(w.mutex);
  w.streams[handle] = std::move(stream);
  w.own_streams.insert(handle);
  return handle;
}
void drop_stream(CuStream stream) {
  synchronize(stream);
  const std::lock_guard lock(cuda_world().mutex);
  cuda_world().own_streams.erase(stream);
  cuda_world().streams.erase(stream);
}
void enqueue(CuStream stream, std::function<void()> work) {
  const std::lock_guard lock(cuda_world().mutex);
  if (Stream* const s = find_stream(stream)) s->add(std::move(work));
}
void synchronize(CuStream stream) {
  auto mark = std::make_shared<Mark>();
  enqueue(stream, [mark] { mark->reach(); });
  mark->wait();
}
void set_capturing(CuStream stream, bool capturing) {
  const std::lock_guard lock(cuda_world().mutex);
  if (Stream* const s = find_stream(stream)) s->capturing = capturing;
}
CuContext current_context() { return context_stack().empty() ? nullptr : context_stack().back(); }
void set_current_context(CuContext context) {
  context_stack().clear();
  if (context != nullptr) context_stack().push_back(context);
}
CuContext context_of(int device) {
  const std::lock_guard lock(cuda_world().mutex);
  return reinterpret_cast<CuContext>(
      &cuda_world().contexts.try_emplace(device, Context{device}).first->second);
}
int retained(int device) {
  const std::lock_guard lock(cuda_world().mutex);
  const auto found = cuda_world().contexts.find(device);
  return found == cuda_world().contexts.end() ? 0 : found->second.retained;
}

int enter(const char* name, int error) {
  CudaWorld& w = cuda_world();
  const std::lock_guard lock(w.mutex);
  const auto number = static_cast<int64_t>(w.calls.size());
  w.calls.emplace_back(name);
  if (number == w.fail_at) return error;
  return w.fail_name == name ? w.fail_result : 0;
}
void violation(const std::string& text) {
  const std::lock_guard lock(cuda_world().mutex);
  cuda_world().violations.push_back(text);
}
void count_communicators(int change) {
  const std::lock_guard lock(cuda_world().mutex);
  cuda_world().communicators += change;
}
int device_of(CuContext context) {
  return context == nullptr ? -1 : reinterpret_cast<Context*>(context)->device;
}
int device_of_memory(const void* memory) {
  const std::lock_guard lock(cuda_world().mutex);
  const auto* found = find_memory(reinterpret_cast<uintptr_t>(memory));
  return found == nullptr ? -1 : found->second.device;
}
bool knows_stream(CuStream stream) {
  const std::lock_guard lock(cuda_world().mutex);
  return find_stream(stream) != nullptr;
}

}  // namespace hvddouble

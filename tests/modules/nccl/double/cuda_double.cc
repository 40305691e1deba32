// libcuda_double.so: streams are threads, events are marks that they pass.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "modules/nccl/double/double.h"

namespace hvddouble {
namespace {

constexpr CuResult kInvalidValue = 1, kNotInitialized = 3, kNoDevice = 100, kInvalidDevice = 101,
                   kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600, kUnknown = 999;

struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  void reach() {
    const std::lock_guard lock(mutex);
    reached = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return reached; });
  }
  bool is_reached() {
    const std::lock_guard lock(mutex);
    return reached;
  }
};

// Its thread outlives it as long as there is work: destroying a stream does not stop what it was given.
struct Stream {
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;
    bool ended = false;
  };
  explicit Stream(int d) : device(d), queue(std::make_shared<Queue>()) {
    std::thread([queue = queue] {
      std::unique_lock lock(queue->mutex);
      for (;;) {
        queue->changed.wait(lock, [&] { return queue->ended || !queue->work.empty(); });
        if (queue->work.empty()) return;
        const auto work = std::move(queue->work.front());
        queue->work.pop_front();
        lock.unlock();
        work();
        lock.lock();
      }
    }).detach();
  }
  ~Stream() {
    const std::lock_guard lock(queue->mutex);
    queue->ended = true;
    queue->changed.notify_all();
  }
  void add(std::function<void()> work) {
    const std::lock_guard lock(queue->mutex);
    queue->work.push_back(std::move(work));
    queue->changed.notify_all();
  }
  const int device;
  const std::shared_ptr<Queue> queue;
  std::atomic<bool> capturing{false};
};

struct Event {
  int device;
  std::shared_ptr<Mark> mark;
};

struct Context {
  explicit Context(int d) : device(d) {}
  const int device;
  int retained = 0;  // by the module
};

struct Memory {
  size_t size;
  int device;  // -1: host
  bool counted;
};

struct World {
  std::mutex mutex;
  std::vector<std::string> calls, violations;
  int64_t fail_at = -1;
  std::string fail_name;
  int fail_result = 0;
  bool initialized = false;
  int devices = 2;
  std::map<int, Context> contexts;
  std::map<int, std::unique_ptr<Stream>> default_streams;  // by device
  std::map<CuStream, std::unique_ptr<Stream>> streams;
  std::set<CuStream> own_streams;  // of the tests
  std::map<CuEvent, std::unique_ptr<Event>> events;
  std::map<uintptr_t, Memory> memory;
  int communicators = 0;
};

World& world() {
  static World* const instance = new World;
  return *instance;
}

thread_local std::vector<CuContext> stack;

Context* current() { return stack.empty() ? nullptr : reinterpret_cast<Context*>(stack.back()); }

// Under the mutex.
Stream* find_stream(CuStream handle) {
  World& w = world();
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
  World& w = world();
  auto next = w.memory.upper_bound(at);
  if (next == w.memory.begin()) return nullptr;
  --next;
  return at < next->first + next->second.size ? &*next : nullptr;
}

void* add_memory(size_t size, int device, bool counted) {
  void* const memory = std::malloc(std::max<size_t>(size, 1));
  const std::lock_guard lock(world().mutex);
  world().memory[reinterpret_cast<uintptr_t>(memory)] = {std::max<size_t>(size, 1), device, counted};
  return memory;
}

CuResult drop_memory(uintptr_t at, const char* what) {
  {
    const std::lock_guard lock(world().mutex);
    if (world().memory.erase(at) == 0) {
      world().violations.push_back(std::string(what) + " of what was not allocated");
      return kInvalidValue;
    }
  }
  std::free(reinterpret_cast<void*>(at));
  return 0;
}

CuResult copy_async(void* to, const void* from, size_t size, CuStream stream, const void* on_device) {
  World& w = world();
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

}  // namespace

void reset() {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  w.calls.clear();
  w.violations.clear();
  w.fail_at = -1;
  w.fail_name.clear();
}
std::vector<std::string> calls() {
  const std::lock_guard lock(world().mutex);
  return world().calls;
}
int64_t call_count() {
  const std::lock_guard lock(world().mutex);
  return static_cast<int64_t>(world().calls.size());
}
void fail_call(int64_t number) {
  const std::lock_guard lock(world().mutex);
  world().fail_at = number;
}
void fail_function(const std::string& name, int result) {
  const std::lock_guard lock(world().mutex);
  world().fail_name = name;
  world().fail_result = result;
}
std::vector<std::string> violations() {
  const std::lock_guard lock(world().mutex);
  return world().violations;
}
void set_device_count(int count) {
  const std::lock_guard lock(world().mutex);
  world().devices = count;
}

std::string alive() {
  World& w = world();
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
  World& w = world();
  auto stream = std::make_unique<Stream>(device);
  const auto handle = reinterpret_cast<CuStream>(stream.get());
  const std::lock_guard lock(w.mutex);
  w.streams[handle] = std::move(stream);
  w.own_streams.insert(handle);
  return handle;
}
void drop_stream(CuStream stream) {
  synchronize(stream);
  const std::lock_guard lock(world().mutex);
  world().own_streams.erase(stream);
  world().streams.erase(stream);
}
void enqueue(CuStream stream, std::function<void()> work) {
  const std::lock_guard lock(world().mutex);
  if (Stream* const s = find_stream(stream)) s->add(std::move(work));
}
void synchronize(CuStream stream) {
  auto mark = std::make_shared<Mark>();
  enqueue(stream, [mark] { mark->reach(); });
  mark->wait();
}
void set_capturing(CuStream stream, bool capturing) {
  const std::lock_guard lock(world().mutex);
  if (Stream* const s = find_stream(stream)) s->capturing = capturing;
}
CuContext current_context() { return stack.empty() ? nullptr : stack.back(); }
void set_current_context(CuContext context) {
  stack.clear();
  if (context != nullptr) stack.push_back(context);
}
CuContext context_of(int device) {
  const std::lock_guard lock(world().mutex);
  return reinterpret_cast<CuContext>(&world().contexts.try_emplace(device, Context{device}).first->second);
}
int retained(int device) {
  const std::lock_guard lock(world().mutex);
  const auto found = world().contexts.find(device);
  return found == world().contexts.end() ? 0 : found->second.retained;
}

int enter(const char* name, int error) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  const auto number = static_cast<int64_t>(w.calls.size());
  w.calls.emplace_back(name);
  if (number == w.fail_at) return error;
  return w.fail_name == name ? w.fail_result : 0;
}
void violation(const std::string& text) {
  const std::lock_guard lock(world().mutex);
  world().violations.push_back(text);
}
void count_communicators(int change) {
  const std::lock_guard lock(world().mutex);
  world().communicators += change;
}
int device_of(CuContext context) {
  return context == nullptr ? -1 : reinterpret_cast<Context*>(context)->device;
}
int device_of_memory(const void* memory) {
  const std::lock_guard lock(world().mutex);
  const auto* found = find_memory(reinterpret_cast<uintptr_t>(memory));
  return found == nullptr ? -1 : found->second.device;
}
bool knows_stream(CuStream stream) {
  const std::lock_guard lock(world().mutex);
  return find_stream(stream) != nullptr;
}

}  // namespace hvddouble

using namespace hvddouble;

#define ENTER() \
  if (const int injected = enter(__func__, kUnknown); injected != 0) return injected
#define NEED(condition, result) \
  if (!(condition)) return result
// What frees does so also when it is to fail.
#define LEAVE(result) return injected != 0 ? injected : (result)

extern "C" {
#pragma GCC visibility push(default)

CuResult cuInit(unsigned) {
  ENTER();
  const std::lock_guard lock(world().mutex);
  if (world().devices == 0) return kNoDevice;
  world().initialized = true;
  return 0;
}
CuResult cuDriverGetVersion(int* version) {
  ENTER();
  *version = 12090;
  return 0;
}
CuResult cuDeviceGetCount(int* count) {
  ENTER();
  const std::lock_guard lock(world().mutex);
  NEED(world().initialized, kNotInitialized);
  *count = world().devices;
  return 0;
}
CuResult cuDeviceGet(int* device, int ordinal) {
  ENTER();
  const std::lock_guard lock(world().mutex);
  NEED(world().initialized, kNotInitialized);
  NEED(ordinal >= 0 && ordinal < world().devices, kInvalidDevice);
  *device = ordinal;
  return 0;
}
CuResult cuDevicePrimaryCtxRetain(CuContext* context, int device) {
  ENTER();
  const std::lock_guard lock(world().mutex);
  Context& c = world().contexts.try_emplace(device, Context{device}).first->second;
  ++c.retained;
  *context = reinterpret_cast<CuContext>(&c);
  return 0;
}
CuResult cuDevicePrimaryCtxRelease_v2(int device) {
  const int injected = enter(__func__, kUnknown);
  const std::lock_guard lock(world().mutex);
  const auto found = world().contexts.find(device);
  if (found == world().contexts.end() || --found->second.retained < 0)
    world().violations.push_back("a context released once too often");
  LEAVE(0);
}
CuResult cuCtxPushCurrent_v2(CuContext context) {
  ENTER();
  NEED(context != nullptr, kInvalidContext);
  stack.push_back(context);
  return 0;
}
CuResult cuCtxPopCurrent_v2(CuContext* context) {
  const int injected = enter(__func__, kUnknown);
  if (stack.empty()) {
    violation("cuCtxPopCurrent without a current context");
    return kInvalidContext;
  }
  *context = stack.back();
  stack.pop_back();
  LEAVE(0);
}
CuResult cuCtxGetCurrent(CuContext* context) {
  ENTER();
  *context = stack.empty() ? nullptr : stack.back();
  return 0;
}
CuResult cuCtxGetDevice(int* device) {
  ENTER();
  NEED(current() != nullptr, kInvalidContext);
  *device = current()->device;
  return 0;
}
CuResult cuStreamCreate(CuStream* stream, unsigned flags) {
  ENTER();
  NEED(current() != nullptr, kInvalidContext);
  if (flags != 1) violation("a stream of the module's that is ordered with the default stream");
  auto made = std::make_unique<Stream>(current()->device);
  *stream = reinterpret_cast<CuStream>(made.get());
  const std::lock_guard lock(world().mutex);
  world().streams[*stream] = std::move(made);
  return 0;
}
CuResult cuStreamDestroy_v2(CuStream stream) {
  const int injected = enter(__func__, kUnknown);
  std::unique_ptr<Stream> gone;
  const std::lock_guard lock(world().mutex);
  const auto found = world().streams.find(stream);
  if (found == world().streams.end()) {
    world().violations.push_back("cuStreamDestroy of what is no stream");
    return kInvalidHandle;
  }
  gone = std::move(found->second);
  world().streams.erase(found);
  LEAVE(0);
}
CuResult cuStreamWaitEvent(CuStream stream, CuEvent event, unsigned) {
  ENTER();
  World& w = world();
  const std::lock_guard lock(w.mutex);
  Stream* const s = find_stream(stream);
  const auto found = w.events.find(event);
  NEED(s != nullptr && found != w.events.end(), kInvalidHandle);
  if (auto mark = found->second->mark) s->add([mark] { mark->wait(); });
  return 0;
}
CuResult cuStreamIsCapturing(CuStream stream, int* status) {
  ENTER();
  const std::lock_guard lock(world().mutex);
  Stream* const s = find_stream(stream);
  NEED(s != nullptr, kInvalidHandle);
  *status = s->capturing ? 1 : 0;
  return 0;
}
CuResult cuStreamSynchronize(CuStream stream) {
  ENTER();
  NEED(knows_stream(stream), kInvalidHandle);
  synchronize(stream);
  return 0;
}
CuResult cuStreamQuery(CuStream stream) {
  ENTER();
  NEED(knows_stream(stream), kInvalidHandle);
  return 0;
}
CuResult cuEventCreate(CuEvent* event, unsigned) {
  ENTER();
  NEED(current() != nullptr, kInvalidContext);
  auto made = std::make_unique<Event>(Event{current()->device, nullptr});
  *event = reinterpret_cast<CuEvent>(made.get());
  const std::lock_guard lock(world().mutex);
  world().events[*event] = std::move(made);
  return 0;
}
CuResult cuEventRecord(CuEvent event, CuStream stream) {
  ENTER();
  World& w = world();
  const std::lock_guard lock(w.mutex);
  Stream* const s = find_stream(stream);
  const auto found = w.events.find(event);
  NEED(s != nullptr && found != w.events.end(), kInvalidHandle);
  NEED(found->second->device == s->device, kInvalidHandle);
  auto mark = std::make_shared<Mark>();
  found->second->mark = mark;
  s->add([mark] { mark->reach(); });
  return 0;
}
CuResult cuEventQuery(CuEvent event) {
  ENTER();
  const std::lock_guard lock(world().mutex);
  const auto found = world().events.find(event);
  NEED(found != world().events.end(), kInvalidHandle);
  return found->second->mark == nullptr || found->second->mark->is_reached() ? 0 : kNotReady;
}
CuResult cuEventDestroy_v2(CuEvent event) {
  const int injected = enter(__func__, kUnknown);
  const std::lock_guard lock(world().mutex);
  if (world().events.erase(event) == 0) world().violations.push_back("cuEventDestroy of what is no event");
  LEAVE(0);
}
CuResult cuMemHostAlloc(void** memory, size_t size, unsigned flags) {
  ENTER();
  NEED(current() != nullptr, kInvalidContext);
  if (flags != 1) violation("pinned memory that is not portable");
  *memory = add_memory(size, -1, true);
  return 0;
}
CuResult cuMemFreeHost(void* memory) {
  const int injected = enter(__func__, kUnknown);
  const CuResult result = drop_memory(reinterpret_cast<uintptr_t>(memory), "cuMemFreeHost");
  LEAVE(result);
}
CuResult cuMemAlloc_v2(CuPointer* memory, size_t size) {
  ENTER();
  NEED(current() != nullptr, kInvalidContext);
  *memory = reinterpret_cast<uintptr_t>(add_memory(size, current()->device, true));
  return 0;
}
CuResult cuMemFree_v2(CuPointer memory) {
  const int injected = enter(__func__, kUnknown);
  const CuResult result = drop_memory(static_cast<uintptr_t>(memory), "cuMemFree");
  LEAVE(result);
}
CuResult cuMemcpyDtoHAsync_v2(void* to, CuPointer from, size_t size, CuStream stream) {
  ENTER();
  const auto* source = reinterpret_cast<const void*>(static_cast<uintptr_t>(from));
  return copy_async(to, source, size, stream, source);
}
CuResult cuMemcpyHtoDAsync_v2(CuPointer to, const void* from, size_t size, CuStream stream) {
  ENTER();
  auto* const target = reinterpret_cast<void*>(static_cast<uintptr_t>(to));
  return copy_async(target, from, size, stream, target);
}
CuResult cuMemcpyDtoDAsync_v2(CuPointer to, CuPointer from, size_t size, CuStream stream) {
  ENTER();
  auto* const target = reinterpret_cast<void*>(static_cast<uintptr_t>(to));
  return copy_async(target, reinterpret_cast<const void*>(static_cast<uintptr_t>(from)), size, stream,
                    target);
}
CuResult cuPointerGetAttribute(void* data, int attribute, CuPointer pointer) {
  ENTER();
  const std::lock_guard lock(world().mutex);
  const auto* found = find_memory(static_cast<uintptr_t>(pointer));
  NEED(found != nullptr, kInvalidValue);
  int value = 0;
  if (attribute == 2) value = found->second.device < 0 ? 1 : 2;
  if (attribute == 9) value = std::max(found->second.device, 0);
  std::memcpy(data, &value, sizeof(value));
  return 0;
}
CuResult cuGetErrorName(CuResult error, const char** text) {
  switch (error) {
    case 1: *text = "CUDA_ERROR_INVALID_VALUE"; return 0;
    case 100: *text = "CUDA_ERROR_NO_DEVICE"; return 0;
    case 101: *text = "CUDA_ERROR_INVALID_DEVICE"; return 0;
    case 400: *text = "CUDA_ERROR_INVALID_HANDLE"; return 0;
    case 999: *text = "CUDA_ERROR_UNKNOWN"; return 0;
    default: return kInvalidValue;
  }
}
CuResult cuGetErrorString(CuResult, const char** text) {
  *text = "said by the double";
  return 0;
}

#pragma GCC visibility pop
}

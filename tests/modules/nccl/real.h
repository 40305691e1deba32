// A rank of the tests with the real libraries, in a process of its own: the GPU as a program uses it, and the
// store of the ranks' processes.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "backend/module.h"
#include "modules/cluster.h"
#include "modules/nccl/api.h"

namespace hvd::backend::test {

namespace fs = std::filesystem;
using hvdnccl::CuPointer;
using hvdnccl::CuStream;

inline std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

inline std::vector<std::pair<std::string, std::string>> libraries() {
  return {{"nccl_library", variable("HVD_NCCL_LIBRARY")}, {"cuda_library", variable("HVD_CUDA_LIBRARY")}};
}

/// The store of the ranks' processes: files of a directory.
class Files {
 public:
  explicit Files(fs::path directory) : directory_(std::move(directory)) {}
  Status set(uint64_t generation, const std::string& key, std::span<const uint8_t> value) const {
    const fs::path path = path_of(generation, key);
    const fs::path draft = path.string() + "." + std::to_string(getpid());
    std::ofstream(draft, std::ios::binary)
        .write(reinterpret_cast<const char*>(value.data()), static_cast<std::streamsize>(value.size()));
    fs::rename(draft, path);
    return {};
  }
  Status get(uint64_t generation, const std::string& key, Duration timeout,
             std::vector<uint8_t>* value) const {
    const fs::path path = path_of(generation, key);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    while (!fs::exists(path)) {
      if (std::chrono::steady_clock::now() >= deadline) return {HVD_TIMEOUT, "the key did not come"};
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::ifstream file(path, std::ios::binary);
    value->assign(std::istreambuf_iterator<char>(file), {});
    return {};
  }

 private:
  fs::path path_of(uint64_t generation, std::string key) const {
    std::replace(key.begin(), key.end(), '/', '_');
    return directory_ / (std::to_string(generation) + "." + key);
  }
  const fs::path directory_;
};

/// The driver API as a program uses it.
class Gpu {
 public:
  /// "" or why there is none.
  std::string open() {
    std::string path = variable("HVD_CUDA_LIBRARY");
    if (path.empty()) path = "libcuda.so.1";
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return dlerror();
#define HVD_RESOLVE(name, parameters) cu.name = reinterpret_cast<decltype(cu.name)>(dlsym(handle, #name));
    HVDNCCL_CUDA_FUNCTIONS(HVD_RESOLVE)
#undef HVD_RESOLVE
    if (const int result = cu.cuInit(0); result != 0) return "cuInit gave " + std::to_string(result);
    if (cu.cuDeviceGetCount(&count) != 0 || count == 0) return "no device";
    return "";
  }
  void use(int ordinal) {
    device = ordinal;
    hvdnccl::CuDevice handle = 0;
    check(cu.cuDeviceGet(&handle, ordinal), "cuDeviceGet");
    hvdnccl::CuContext context = nullptr;
    check(cu.cuDevicePrimaryCtxRetain(&context, handle), "cuDevicePrimaryCtxRetain");
    check(cu.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
    check(cu.cuStreamCreate(&stream, hvdnccl::kCuStreamNonBlocking), "cuStreamCreate");
  }
  static void check(int result, const char* what) {
    if (result != 0) throw std::runtime_error(std::string(what) + " gave " + std::to_string(result));
  }
  void* allocate(size_t size) const {
    CuPointer memory = 0;
    check(cu.cuMemAlloc_v2(&memory, std::max<size_t>(size, 1)), "cuMemAlloc");
    return reinterpret_cast<void*>(static_cast<uintptr_t>(memory));
  }
  static CuPointer at(const void* data) { return static_cast<CuPointer>(reinterpret_cast<uintptr_t>(data)); }
  void put(void* to, const std::vector<uint8_t>& from) const {
    if (from.empty()) return;
    check(cu.cuMemcpyHtoDAsync_v2(at(to), from.data(), from.size(), stream), "cuMemcpyHtoDAsync");
    check(cu.cuStreamSynchronize(stream), "cuStreamSynchronize");
  }
  std::vector<uint8_t> take(const void* from, size_t size) const {
    std::vector<uint8_t> data(size);
    if (size > 0) check(cu.cuMemcpyDtoHAsync_v2(data.data(), at(from), size, stream), "cuMemcpyDtoHAsync");
    check(cu.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return data;
  }

  hvdnccl::CudaFunctions cu;
  int count = 0, device = 0;
  CuStream stream = nullptr;
};

/// One rank, in a process of its own. Whatever goes wrong is an exception, whose text ends up in the test's
/// output.
struct Rank {
  Rank(int rank, int size, const fs::path& directory) : rank(rank), size(size), files(directory) {
    if (const std::string why = gpu.open(); !why.empty()) throw std::runtime_error(why);
    gpu.use(rank % gpu.count);
    std::shared_ptr<Module> module;
    expect(load_module(HVD_NCCL_MODULE, &module));
    HostHandlers handlers = inbox.handlers();
    handlers.kv_set = [this](uint64_t g, const std::string& key, std::span<const uint8_t> value) {
      return files.set(g, key, value);
    };
    handlers.kv_get = [this](uint64_t g, const std::string& key, Duration timeout,
                             std::vector<uint8_t>* value) { return files.get(g, key, timeout, value); };
    expect(open_instance(module, libraries(), std::move(handlers), std::make_shared<Logger>(), &instance));
  }
  static void expect(const Status& status) {
    if (!status.ok()) throw std::runtime_error(std::string(status_name(status.code)) + ": " + status.message);
  }
  static void require(bool holds, const std::string& text) {
    if (!holds) throw std::runtime_error(text);
  }
  static void require_same(const std::vector<uint8_t>& got, const std::vector<uint8_t>& wanted,
                           const std::string& text) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      require(got[i] == wanted[i], text + ": byte " + std::to_string(i) + " is " + std::to_string(got[i]) +
                                       ", expected " + std::to_string(wanted[i]));
    }
  }
  void connect(uint64_t generation) {
    std::vector<uint8_t> own;
    expect(address_of(*instance, &own));
    expect(files.set(generation, "address." + std::to_string(rank), own));
    std::vector<Member> members;
    for (int r = 0; r < size; ++r) {
      std::vector<uint8_t> address;
      expect(files.get(generation, "address." + std::to_string(r), kSoon, &address));
      members.push_back(member_at(static_cast<uint64_t>(r + 1), "localhost", *instance, std::move(address)));
    }
    expect(instance->connect(generation, rank, members, kSoon));
  }
  /// All ranks are here: by the store, without NCCL.
  void meet(const std::string& where) {
    expect(files.set(0, where + "." + std::to_string(rank), std::vector<uint8_t>{1}));
    std::vector<uint8_t> value;
    for (int r = 0; r < size; ++r) expect(files.get(0, where + "." + std::to_string(r), kSoon, &value));
  }
  hvd_backend_op op(Pending& pending, hvd_collective collective) {
    hvd_backend_op op = pending.op(collective, ++sequence);
    op.memory = HVD_MEMORY_CUDA;
    op.device = gpu.device;
    op.stream = gpu.stream;
    return op;
  }
  void run_ok(const hvd_backend_op& op, Pending& pending, std::span<const Part> parts = {}) {
    expect(instance->submit(op, parts));
    expect(pending.wait());
  }

  const int rank, size;
  Files files;
  Gpu gpu;
  Inbox inbox;
  std::unique_ptr<Instance> instance;
  uint64_t sequence = 0;
};

}  // namespace hvd::backend::test

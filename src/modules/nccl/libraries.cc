// Finds libnccl and libcuda, and their functions.
#include "modules/nccl/libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <vector>

#include "modules/nccl/failure.h"

namespace hvdnccl {
namespace {

namespace fs = std::filesystem;
constexpr const char* kNccl = "libnccl.so.2";
constexpr const char* kCuda = "libcuda.so.1";
constexpr const char* kWheel = "nvidia/nccl/lib/libnccl.so.2";  // where the Python wheels of NCCL put it

std::string dl_reason() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown reason";
}

std::string path_of(const void* symbol) {
  Dl_info info{};
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return "";
  return info.dli_fname;
}

std::string environment(const char* name) {
  const char* value = ::secure_getenv(name);
  return value != nullptr ? value : "";
}

void add(std::vector<fs::path>& paths, const fs::path& path) {
  std::error_code code;
  if (fs::exists(path, code) && std::find(paths.begin(), paths.end(), path) == paths.end())
    paths.push_back(path);
}

// lib/python3.*/site-packages of a Python's prefix.
void add_prefix(std::vector<fs::path>& paths, const fs::path& prefix) {
  if (prefix.empty()) return;
  for (const char* lib : {"lib", "lib64"}) {
    std::error_code code;
    for (fs::directory_iterator entry(prefix / lib, code), end; !code && entry != end;
         entry.increment(code)) {
      if (entry->path().filename().string().rfind("python3", 0) != 0) continue;
      add(paths, entry->path() / "site-packages" / kWheel);
      add(paths, entry->path() / "dist-packages" / kWheel);
    }
  }
  add(paths, prefix / "lib" / kNccl);  // conda's
}

// The site-packages of everything that is loaded already: a framework's own libraries lie there.
int add_loaded(dl_phdr_info* info, size_t, void* context) {
  const std::string name = info->dlpi_name != nullptr ? info->dlpi_name : "";
  for (const std::string part : {"/site-packages/", "/dist-packages/"}) {
    const size_t at = name.find(part);
    if (at != std::string::npos) {
      add(*static_cast<std::vector<fs::path>*>(context), fs::path(name.substr(0, at + part.size())) / kWheel);
    }
  }
  return 0;
}

std::vector<fs::path> wheels() {
  std::vector<fs::path> paths;
  dl_iterate_phdr(add_loaded, &paths);
  add_prefix(paths, environment("VIRTUAL_ENV"));
  add_prefix(paths, environment("CONDA_PREFIX"));
  std::error_code code;
  const fs::path program = fs::read_symlink("/proc/self/exe", code);  // bin/python3.11 of its prefix
  if (!code && program.filename().string().rfind("python", 0) == 0) {
    add_prefix(paths, program.parent_path().parent_path());
  }
  return paths;
}

// Of a library that the process has already, nothing else is taken: two copies of one do not get on.
void* open_cuda(const std::string& given) {
  if (!given.empty()) {
    if (void* handle = dlopen(given.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    throw Failure(HVD_UNAVAILABLE,
                  fmt::format("the CUDA driver can't be loaded from option cuda_library: {}", dl_reason()));
  }
  if (void* handle = dlopen(kCuda, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return handle;
  if (void* handle = dlopen(kCuda, RTLD_NOW | RTLD_LOCAL)) return handle;
  const std::string reason = dl_reason();
  if (void* handle = dlopen("/usr/lib/wsl/lib/libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) return handle;
  throw Failure(HVD_UNAVAILABLE, fmt::format("no CUDA driver on this machine ({})", reason));
}

void* open_nccl(const std::string& given) {
  if (!given.empty()) {
    if (void* handle = dlopen(given.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    throw Failure(HVD_UNAVAILABLE,
                  fmt::format("NCCL can't be loaded from option nccl_library: {}", dl_reason()));
  }
  if (void* handle = dlopen(kNccl, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return handle;
  if (void* handle = dlopen(kNccl, RTLD_NOW | RTLD_LOCAL)) return handle;
  std::string reason = dl_reason();
  for (const fs::path& path : wheels()) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    reason += "; " + dl_reason();
  }
  throw Failure(
      HVD_UNAVAILABLE,
      fmt::format("NCCL was not found ({}): install nvidia-nccl-cu12 or -cu13, or set option nccl_library",
                  reason));
}

template <class Function>
void resolve(void* handle, const char* library, const char* name, Function** ret_function) {
  void* const symbol = dlsym(handle, name);
  if (symbol == nullptr) {
    throw Failure(HVD_UNAVAILABLE, fmt::format("{} has no {}: it is too old", library, name));
  }
  *ret_function = reinterpret_cast<Function*>(symbol);
}

std::shared_ptr<Libraries> load_both(const LibraryPaths& paths) {
  auto libraries = std::make_shared<Libraries>();
  // The driver first: where there is none, NCCL's hundreds of megabytes are not touched.
  void* const cuda = open_cuda(paths.cuda);
#define HVDNCCL_RESOLVE(name, parameters) resolve(cuda, "the CUDA driver", #name, &libraries->cuda.name);
  HVDNCCL_CUDA_FUNCTIONS(HVDNCCL_RESOLVE)
#undef HVDNCCL_RESOLVE
  libraries->cuda_path = path_of(reinterpret_cast<const void*>(libraries->cuda.cuInit));
  void* const nccl = open_nccl(paths.nccl);
#define HVDNCCL_RESOLVE(name, parameters) resolve(nccl, "NCCL", #name, &libraries->nccl.name);
  resolve(nccl, "NCCL", "ncclGetVersion", &libraries->nccl.ncclGetVersion);
  libraries->nccl_path = path_of(reinterpret_cast<const void*>(libraries->nccl.ncclGetVersion));
  if (const NcclResult result = libraries->nccl.ncclGetVersion(&libraries->nccl_version);
      result != kNcclSuccess) {
    throw vendor_failure(HVD_UNAVAILABLE,
                         fmt::format("ncclGetVersion of {} gave {}", libraries->nccl_path, result), result);
  }
  if (libraries->nccl_version < kNcclOldest) {
    throw Failure(HVD_UNAVAILABLE, fmt::format("NCCL {} of {} is too old: expected {} or later",
                                               version_text(libraries->nccl_version), libraries->nccl_path,
                                               version_text(kNcclOldest)));
  }
  HVDNCCL_NCCL_FUNCTIONS(HVDNCCL_RESOLVE)
  HVDNCCL_NCCL_TEXTS(HVDNCCL_RESOLVE)
#undef HVDNCCL_RESOLVE
  return libraries;
}

}  // namespace

std::shared_ptr<Libraries> Libraries::load(const LibraryPaths& paths) {
  static std::mutex* const mutex = new std::mutex;  // outlives every static destructor, as the libraries do
  static auto* const loaded = new std::map<std::pair<std::string, std::string>, std::shared_ptr<Libraries>>;
  const std::lock_guard lock(*mutex);
  auto& entry = (*loaded)[{paths.nccl, paths.cuda}];
  if (entry == nullptr) entry = load_both(paths);
  return entry;
}

void Libraries::start() {
  const std::lock_guard lock(mutex_);
  if (started_) return;
  const auto unavailable = [&](const char* what, CuResult result) {
    throw Failure(HVD_UNAVAILABLE,
                  fmt::format("no CUDA device can be used: {} gave {}", what, describe(result)), result);
  };
  if (const CuResult result = cuda.cuInit(0); result != kCuSuccess) unavailable("cuInit", result);
  int count = 0;
  if (const CuResult result = cuda.cuDeviceGetCount(&count); result != kCuSuccess) {
    unavailable("cuDeviceGetCount", result);
  }
  if (count < 1)
    throw Failure(HVD_UNAVAILABLE,
                  "no CUDA device can be used: this process sees none (CUDA_VISIBLE_DEVICES?)");
  started_ = true;
}

std::string Libraries::describe(CuResult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuda.cuGetErrorName(result, &name) != kCuSuccess || name == nullptr)
    return fmt::format("CUDA error {}", result);
  if (cuda.cuGetErrorString(result, &text) != kCuSuccess || text == nullptr) return name;
  return fmt::format("{} ({})", name, text);
}

void Libraries::check(CuResult result, const char* what) const {
  if (result != kCuSuccess)
    throw vendor_failure(HVD_INTERNAL, fmt::format("{} gave {}", what, describe(result)), result);
}

std::string version_text(int v) {
  return v < 10000 ? fmt::format("{}.{}.{}", v / 1000, v % 1000 / 100, v % 100)
                   : fmt::format("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100);
}

}  // namespace hvdnccl

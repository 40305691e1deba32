// The two libraries, loaded at run time. They stay loaded for the life of the process.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "modules/nccl/api.h"

namespace hvdnccl {

/// Paths or names as given by options nccl_library and cuda_library; "": looked for.
struct LibraryPaths {
  std::string nccl, cuda;
};

class Libraries {
 public:
  /// Loads both, or gives what is loaded already from the same paths. Touches no device: a process that only
  /// asks can still fork. Throws Failure(HVD_UNAVAILABLE) with one sentence.
  static std::shared_ptr<Libraries> load(const LibraryPaths& paths);

  CudaFunctions cuda;
  NcclFunctions nccl;
  int nccl_version = 0;  // as NCCL codes it: 22809
  std::string nccl_path, cuda_path;

  /// cuInit, once, and whether there is a device. Throws Failure(HVD_UNAVAILABLE).
  void start();

  /// Throws Failure if `result` is no success: HVD_INTERNAL, with `what` and CUDA's name of the error.
  void check(CuResult result, const char* what) const;
  std::string describe(CuResult result) const;  // "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)"

 private:
  std::mutex mutex_;
  bool started_ = false;
};

std::string version_text(int nccl_version);  // "2.28.9"

}  // namespace hvdnccl

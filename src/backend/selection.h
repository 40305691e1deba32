// Which backends a worker uses, and why.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.h"

namespace hvd::backend {

/// The MPI launcher that has started this process, and the modules for its MPI in order: the one that option backend
/// names if it names one, since a process can't run two MPIs. Nothing for a worker that a driver of this library or
/// torchrun has started, whatever their own environment was.
struct MpiLauncher {
  std::string variable;  // that tells of it
  std::vector<std::string> modules;
  int64_t processes = 0;  // that it says it has started; 0: it doesn't say
};
std::optional<MpiLauncher> mpi_launcher(const Options& options);

/// "nccl, gloo" to its names; throws Error(HVD_INVALID) for what is none.
std::vector<std::string> parse_backends(const std::string& text);

}  // namespace hvd::backend

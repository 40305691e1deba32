// Which backends a worker uses, and why.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.h"

namespace hvd::backend {

/// The MPI launcher that has started this process, and the modules for its MPI in order. Nothing for a worker that a
/// driver of this library has started, whatever that driver's own environment was.
struct MpiLauncher {
  std::string variable;  // that tells of it
  std::vector<std::string> modules;
};
std::optional<MpiLauncher> mpi_launcher(const Options& options);

/// "nccl, gloo" to its names; throws Error(HVD_INVALID) for what is none.
std::vector<std::string> parse_backends(const std::string& text);

}  // namespace hvd::backend

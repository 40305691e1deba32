// torchrun's variables for workers, where they mean the same here. Pure, but for free_port.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvd::driver {

/// A worker that is about to be started.
struct TorchrunPlace {
  int64_t number = 0;      // of those that were started, from 0
  int32_t slot = 0;        // on its host
  int32_t host_slots = 1;  // that the host has
  int64_t world = 0;       // size of the first generation, as foreseen
  bool first = false;      // no generation was formed yet
  std::string master;
  uint16_t port = 0;
};

/// "NAME=value": LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for everybody; RANK and WORLD_SIZE
/// for those that begin, since a later worker may get any rank.
std::vector<std::string> torchrun_variables(const TorchrunPlace& place);

/// A port that nobody on this machine listens at now; 0 if there is none.
uint16_t free_port();

}  // namespace hvd::driver

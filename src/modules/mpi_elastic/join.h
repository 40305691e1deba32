// How worlds (processes that share a communicator each) become one: two by two, by accept and connect.
#pragma once

#include <string>
#include <vector>

#include "modules/mpi/group.h"

namespace hvdmpi {

/// One round of joins: team 0 accepts team 1, team 2 accepts team 3, ...; gives the teams after it.
struct Pairing {
  int accepting = -1, connecting = -1;  // indices into the teams; the latter -1: stays as it is
};
std::vector<Pairing> pair_up(size_t teams);
std::vector<Team> joined(const std::vector<Team>& teams, uint64_t generation);

/// These two block, for ever if a peer dies meanwhile: in a Call.
std::string open_port();
/// Both sides' processes in one communicator: first those that accept, each side in its order. `port` is
/// looked at by each side's rank 0.
MPI_Comm join(MPI_Comm team, bool accepts, const std::string& port);

}  // namespace hvdmpi

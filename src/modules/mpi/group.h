// Who shares a communicator already, and how the members of a generation get one of their own out of it.
#pragma once

#include <mpi.h>

#include <array>
#include <string>
#include <vector>

#include "hvd/backend.h"
#include "modules/mpi/runtime.h"

namespace hvdmpi {

/// The blob of `address`: the links' own, then where this process stands.
struct Address {
  static constexpr size_t kSize = 40 + 16 + 8;
  WorldId world{};
  int32_t rank = 0, size = 1;

  std::vector<uint8_t> encode(const std::array<uint8_t, 40>& links) const;
  static Address decode(const void* data, size_t size);  // throws Failure
};

/// Members of a generation that share a communicator, which has them in this order.
struct Team {
  WorldId world{};
  std::vector<int> members;      // ranks in the generation
  std::vector<int> world_ranks;  // theirs in the world, ascending; only before the first join
};

/// By size, largest first; then by their lowest member. The same on every rank. Throws Failure.
std::vector<Team> teams_of(const std::vector<Address>& members);
void sort_teams(std::vector<Team>& teams);

/// Index of the team that has `member`.
size_t team_of(const std::vector<Team>& teams, int member);

/// Blocks, for ever if a peer dies meanwhile: in a Call. The communicator returns errors.
///
/// tag: of two attempts on one parent the later has the lower one. Open MPI and MPICH let the attempt with
/// the lowest number go first, and an attempt that hangs would keep all higher ones waiting.
MPI_Comm make_group(MPI_Comm parent, const std::vector<int>& ranks, int tag);
/// Has every two members of a new communicator exchange a byte, where a first message to a peer that makes no
/// progress would hold the sender up in the middle of a collective. Blocks like make_group.
void acquaint(MPI_Comm comm);

}  // namespace hvdmpi

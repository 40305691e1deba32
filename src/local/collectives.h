// Collectives over the ranks' shared memory, and over several hosts: each host's ranks by shared memory, one
// of each through the backend that joins the hosts.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "local/host_group.h"
#include "local/inner.h"

namespace hvd::local {

/// Which ranks of the generation share memory: the same on every rank.
struct Hosts {
  std::vector<std::vector<int32_t>> groups;  // by lowest rank; each ascending
  std::vector<int32_t> group_of;             // by rank
};

/// Executes one collective; done when this rank's part is and its buffers are no longer used.
/// op.input, output, count, counts as backend.h says, host memory; op.ranks and op.counts are valid here,
/// op.done is the caller's business. ranks: who takes part, ascending, this rank among them. parts: as
/// Instance::submit has them, never empty for broadcast and allreduce (the op's own then). Called with the
/// operations in the same order on all ranks. Not called when several take part and each is alone on its
/// host: such an operation goes to the inner backend as it is. With one group there is no inner backend:
/// inner.submit gives HVD_INTERNAL.
Task run_collective(HostGroup& group, const Hosts& hosts, const hvd_backend_op& op,
                    std::span<const backend::Part> parts, std::span<const int32_t> ranks, InnerOps& inner);

}  // namespace hvd::local

// Collectives over several hosts: within each host by shared memory, between hosts by one rank of each, the
// leader, through the inner backend. In chunks, so that both work at the same time.
#pragma once

#include <span>
#include <vector>

#include "local/inner.h"
#include "local/team.h"
#include "local/tensors.h"

namespace hvd::local {

/// An operation that takes several hosts, as one of their ranks sees it.
struct Span {
  Team& team;                    // on this host
  int32_t leader = 0;            // position in the team
  std::vector<int32_t> leaders;  // ranks, one a host, ascending: the same on all ranks
  InnerOps& inner;

  bool leads() const { return team.me == leader; }
};

/// op.root is a leader.
Task broadcast_across(Span& span, const hvd_backend_op& op, const Tensors& tensors);

/// participants: on all hosts; HVD_REDUCTION_AVERAGE divides by it.
Task allreduce_across(Span& span, const hvd_backend_op& op, const Tensors& tensors, int32_t participants);

/// counts: elements of each participant's part, in the order of `ranks`; each host's ranks are neighbours
/// in it. first: position of this host's lowest in `ranks`; host_counts: elements of each host's ranks.
Task allgather_across(Span& span, const hvd_backend_op& op, std::span<const size_t> counts, size_t first,
                      std::span<const size_t> host_counts);

}  // namespace hvd::local

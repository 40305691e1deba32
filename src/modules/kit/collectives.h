// Collectives over a transport, as a Lane is one: segmented, pipelined, abortable. Each throws Failure when a
// peer is lost.
#pragma once

#include <vector>

#include "hvd/backend.h"
#include "modules/kit/region.h"
#include "modules/kit/task.h"

namespace hvdkit {

/// One collective as its members see it. Every member computes the same plan from it.
struct Party {
  Transport& transport;
  std::vector<int> ranks;  // of the members, ascending
  int me = 0;              // index into ranks
  uint64_t slot = 0;  // the tag of what is sent, and the next one: two per op, so that nothing is mixed up
  size_t segment_bytes = 0;  // the same on all ranks

  int size() const { return static_cast<int>(ranks.size()); }
  int rank(int index) const { return ranks[static_cast<size_t>(index)]; }
  int left() const { return rank((me + size() - 1) % size()); }
  int right() const { return rank((me + 1) % size()); }
};

/// A rough price in nanoseconds of sending `bytes` once, to choose between plans.
constexpr double cost(double bytes) { return 40000.0 + 0.35 * bytes; }

/// root: index into the party's ranks. Binomial tree for little data, pipelined chain for much.
void broadcast(Party& party, int root, void* data, size_t bytes);

/// Each member's part to all members: directly for little data, in doubling steps where members are many,
/// around the ring for much.
/// sizes: bytes of each part. `input` may be this rank's part of `output`.
void allgather(Party& party, const void* input, void* output, const std::vector<size_t>& sizes);

/// Dissemination barrier (Hensgen, Finkel and Manber 1988).
void barrier(Party& party);

/// Same bits on every rank: recursive doubling for little data; then reducescatter and allgather, directly
/// or, for much, around the ring (Patarasuk and Yuan 2009). input may be output.
void allreduce(Party& party, hvd_dtype dtype, hvd_reduction reduction, const void* input, void* output,
               size_t count);

/// counts: elements of each member's part; output: this rank's, which may be that part of the input. Each
/// part is sent to its member and added up there in the order of ranks.
void reducescatter(Party& party, hvd_dtype dtype, hvd_reduction reduction, const void* input, void* output,
                   const std::vector<size_t>& counts);

/// Pairwise exchange. sizes: bytes that go to each member, then bytes that come from each.
void alltoall(Party& party, const void* input, void* output, const std::vector<size_t>& sizes);

/// The collective that the task is, by the functions above.
void run_collective(Party& party, const Task& task);

}  // namespace hvdkit

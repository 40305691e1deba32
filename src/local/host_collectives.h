// Collectives among ranks of one host. Payload goes from memory to memory through the rings' segments. Each
// task is done when this rank's part is, or with HVD_PEER_LOST after abort; it then touches no buffer more.
#pragma once

#include <span>

#include "local/team.h"
#include "local/tensors.h"

namespace hvd::local {

/// root: position in the team. Its inputs reach the others' outputs. The root is done when the last block
/// is in its ring.
Task host_broadcast(Team& team, const Tensors& tensors, int32_t root);

/// Each block is reduced by one rank in the order of ranks: the bits depend on the inputs alone.
/// HVD_REDUCTION_AVERAGE divides by `divisor`.
Task host_allreduce(Team& team, const Tensors& tensors, hvd_dtype dtype, hvd_reduction reduction,
                    int32_t divisor);

/// sizes: bytes of each member's part. `input` may be this rank's part of `output`.
Task host_allgather(Team& team, const uint8_t* input, uint8_t* output, std::span<const size_t> sizes);

/// counts: elements of each member's part of the result; `input` holds them all.
Task host_reducescatter(Team& team, const uint8_t* input, uint8_t* output, std::span<const size_t> counts,
                        hvd_dtype dtype, hvd_reduction reduction, int32_t divisor);

/// Bytes to and from each member; this rank's own are equal.
Task host_alltoall(Team& team, const uint8_t* input, uint8_t* output, std::span<const size_t> sent,
                   std::span<const size_t> received);

Task host_barrier(Team& team);

}  // namespace hvd::local

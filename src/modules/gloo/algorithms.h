// Gloo's collectives over the kit's connections: none of Gloo's own sockets, listeners or threads is ever
// made.
#pragma once

#include "modules/kit/collectives.h"

namespace hvdgloo {

/// What Gloo has for tensors of any dtype: broadcast, allreduce, allgather, alltoall, barrier; the kit's own
/// where it has nothing that adds up as the library promises (reducescatter; float16 and bfloat16, which are
/// rounded once).
void run(hvdkit::Party& party, const hvdkit::Task& task);

}  // namespace hvdgloo

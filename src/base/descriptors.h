// How many descriptors this process may have, and which share of them strangers may take.
#pragma once

#include <algorithm>
#include <cstddef>

namespace hvd {

/// RLIMIT_NOFILE as it is now; without a limit a large number.
size_t descriptor_limit();

/// At most `most`, and of a process with few descriptors an eighth: whoever holds what it may hold leaves
/// enough for the workers' connections, and for the pipes of those that are started anew.
inline size_t share_of_descriptors(size_t most) {
  constexpr size_t kLeast = 4;
  return std::clamp(descriptor_limit() / 8, kLeast, most);
}

}  // namespace hvd

// The bytes of a message, as they are sent and received.
#pragma once

#include <cstdint>
#include <vector>

namespace hvd::wire {

using Bytes = std::vector<uint8_t>;

}  // namespace hvd::wire

// What goes wrong inside the module, as an exception until it reaches the C boundary.
#pragma once

#include <string>

#include "hvd/backend.hpp"

namespace hvdnccl {

using hvdkit::Failure;

constexpr const char* kName = "nccl";

/// A failure that one of NVIDIA's libraries reported as `code`.
inline Failure vendor_failure(hvd_status status, const std::string& text, int64_t code) {
  return {status, text, -1, code};
}

}  // namespace hvdnccl

// What goes wrong inside the module, as an exception until it reaches the C boundary.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "hvd/backend.h"

namespace hvdnccl {

struct Failure : std::runtime_error {
  Failure(hvd_status s, const std::string& text, int64_t vendor = 0)
      : std::runtime_error(text), status(s), vendor_code(vendor) {}
  hvd_status status;
  int64_t vendor_code;
};

inline hvd_error error_of(const Failure& failure, uint64_t generation) noexcept {
  hvd_error error = HVD_ERROR_INIT;
  error.status = failure.status;
  error.generation = generation;
  error.vendor_code = failure.vendor_code;
  std::strncpy(error.backend, "nccl", sizeof(error.backend) - 1);
  std::strncpy(error.message, failure.what(), sizeof(error.message) - 1);
  return error;
}

/// Nothing but a status may leave through the C functions.
template <class Function>
hvd_status guarded(hvd_error* error, uint64_t generation, Function function) noexcept {
  const auto tell = [&](const Failure& failure) {
    if (error != nullptr && error->struct_size >= sizeof(size_t)) {
      hvd_error full = error_of(failure, generation);
      full.struct_size = error->struct_size;
      std::memcpy(error, &full, std::min(error->struct_size, sizeof(full)));
    }
    return failure.status;
  };
  try {
    function();
    return HVD_OK;
  } catch (const Failure& failure) { return tell(failure); } catch (const std::exception& e) {
    return tell(Failure(HVD_INTERNAL, e.what()));
  }
}

}  // namespace hvdnccl

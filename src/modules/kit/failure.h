// What goes wrong inside a module, as an exception until it reaches the C boundary.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "hvd/backend.h"

namespace hvdkit {

struct Failure : std::runtime_error {
  Failure(hvd_status s, const std::string& text, int32_t r = -1, int64_t vendor = 0)
      : std::runtime_error(text), status(s), rank(r), vendor_code(vendor) {}
  hvd_status status;
  int32_t rank;
  int64_t vendor_code;
};

/// backend: the module's name.
inline void write_error(const char* backend, hvd_error* error, const Failure& failure,
                        uint64_t generation) noexcept {
  if (error == nullptr || error->struct_size < sizeof(size_t)) return;
  hvd_error full = HVD_ERROR_INIT;
  full.struct_size = error->struct_size;
  full.status = failure.status;
  full.rank = failure.rank;
  full.generation = generation;
  full.vendor_code = failure.vendor_code;
  std::strncpy(full.backend, backend, sizeof(full.backend) - 1);
  std::strncpy(full.message, failure.what(), sizeof(full.message) - 1);
  std::memcpy(error, &full, std::min(error->struct_size, sizeof(full)));
}

/// Nothing but a status may leave through the C functions.
template <class Function>
hvd_status guarded(const char* backend, hvd_error* error, uint64_t generation, Function function) noexcept {
  try {
    function();
    return HVD_OK;
  } catch (const Failure& failure) {
    write_error(backend, error, failure, generation);
    return failure.status;
  } catch (const std::exception& e) {
    write_error(backend, error, Failure(HVD_INTERNAL, e.what()), generation);
    return HVD_INTERNAL;
  } catch (...) {
    write_error(backend, error, Failure(HVD_INTERNAL, "an exception of an unknown kind"), generation);
    return HVD_INTERNAL;
  }
}

}  // namespace hvdkit

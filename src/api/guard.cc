// What every function of the C API does with an exception: the status and the caller's error.
#include "api/guard.h"

#include <fmt/format.h>

namespace hvd::api {

namespace {

[[gnu::cold]] Status caught() noexcept {
  Status status;
  try {
    throw;
  } catch (const Error& e) {
    // A copy may need memory, too.
    try {
      status = e.status();
    } catch (...) { status.code = e.status().code; }
  } catch (const std::bad_alloc&) {
    status.code = HVD_INTERNAL;
    status.message = "out of memory";  // fits the string's own storage
  } catch (const std::exception& e) {
    try {
      status = Status(HVD_INTERNAL, std::string("unexpected failure: ") + e.what());
    } catch (...) { status.code = HVD_INTERNAL; }
  } catch (...) {
    status.code = HVD_INTERNAL;
    status.message = "unknown error";
  }
  return status;
}

}  // namespace

hvd_status told(const Status& status, hvd_error* error) noexcept {
  if (!status.ok()) status.write_to(error);
  return status.code;
}

hvd_status told_caught(hvd_error* error) noexcept { return told(caught(), error); }

Duration timeout_of(int64_t timeout_ns, Duration fallback) {
  constexpr int64_t kLongest = int64_t{365} * 24 * 3600 * HVD_SECOND;
  if (timeout_ns < 0 || timeout_ns > kLongest) {
    throw Error(HVD_INVALID, fmt::format("timeout_ns is {}: expected 0 (the default) to {} (365 days)",
                                         timeout_ns, kLongest));
  }
  return timeout_ns == HVD_DEFAULT_TIMEOUT ? fallback : Duration(timeout_ns);
}

}  // namespace hvd::api

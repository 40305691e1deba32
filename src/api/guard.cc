// What every function of the C API does with an exception: the status and the caller's error.
#include "api/guard.h"

namespace hvd::api {

Status caught() noexcept {
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

}  // namespace hvd::api

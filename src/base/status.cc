// Names of statuses, and statuses as hvd_error.
#include "base/status.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace hvd {

Status::Status(hvd_status c, std::string m) : code(c), message(std::move(m)) {}

void Status::write_to(hvd_error* error) const noexcept {
  if (error == nullptr || error->struct_size < sizeof(size_t)) return;
  hvd_error full = HVD_ERROR_INIT;
  full.struct_size = error->struct_size;
  full.status = code;
  full.rank = rank;
  full.generation = generation;
  full.vendor_code = vendor_code;
  std::strncpy(full.backend, backend.c_str(), sizeof(full.backend) - 1);
  size_t length = std::min(message.size(), sizeof(full.message) - 1);
  // Never cut a UTF-8 sequence in two.
  while (length < message.size() && length > 0 &&
         (static_cast<unsigned char>(message[length]) & 0xC0U) == 0x80U) {
    --length;
  }
  std::memcpy(full.message, message.data(), length);
  std::memcpy(error, &full, std::min(error->struct_size, sizeof(full)));
}

Status Status::from(hvd_status code, const hvd_error& error) {
  Status status(code, error.message);
  status.rank = error.rank;
  status.generation = error.generation;
  status.vendor_code = error.vendor_code;
  status.backend = error.backend;
  return status;
}

const char* status_name(hvd_status status) {
  switch (status) {
    case HVD_OK: return "HVD_OK";
    case HVD_PEER_LOST: return "HVD_PEER_LOST";
    case HVD_HOSTS_UPDATED: return "HVD_HOSTS_UPDATED";
    case HVD_MISMATCH: return "HVD_MISMATCH";
    case HVD_INVALID: return "HVD_INVALID";
    case HVD_TIMEOUT: return "HVD_TIMEOUT";
    case HVD_CLOSED: return "HVD_CLOSED";
    case HVD_REMOVED: return "HVD_REMOVED";
    case HVD_DRIVER_LOST: return "HVD_DRIVER_LOST";
    case HVD_REFUSED: return "HVD_REFUSED";
    case HVD_UNAVAILABLE: return "HVD_UNAVAILABLE";
    case HVD_UNSUPPORTED: return "HVD_UNSUPPORTED";
    case HVD_CALLBACK_FAILED: return "HVD_CALLBACK_FAILED";
    case HVD_JOB_FAILED: return "HVD_JOB_FAILED";
    case HVD_INTERNAL: return "HVD_INTERNAL";
    default: return "unknown status";
  }
}

}  // namespace hvd

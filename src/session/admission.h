// A worker that no driver started asks one to be let in.
#pragma once

#include <functional>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace hvd::session {

struct Admission {
  std::string job, host, secret;  // secret: the worker's own key from now on
  uint64_t worker = 0;
  int32_t slot = 0;
};

struct AdmissionRequest {
  std::string drivers;  // host:port, or several separated by commas; names are looked up anew at each try
  std::string secret;   // the job's
  std::string job;      // "": any
  std::string host;
  int32_t slot = -1;  // -1: any that is free
  Duration timeout{};
};

/// Blocks, at most for the request's timeout; `closed` is asked again and again whether to give up
/// (HVD_CLOSED). HVD_REFUSED with the driver's reason; HVD_DRIVER_LOST, HVD_TIMEOUT, HVD_INVALID as
/// wire::connect_channel.
Status apply(const AdmissionRequest& request, const std::function<bool()>& closed, Admission* ret_admission);

}  // namespace hvd::session

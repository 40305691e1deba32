// The entry of hvd-driver.so.
#include "api/driver_object.h"

#include <fmt/format.h>

#include <cstring>
#include <mutex>

#include "api/driver_functions.h"
#include "api/guard.h"
#include "api/handle.h"
#include "base/own_directory.h"

namespace hvd::api {

// No call on this side is one on a context.
void close_if_due(hvd_context*) noexcept {}

Options received(const CarriedOptions& carried) {
  Callback<hvd_log_fn> log(carried.log, carried.userdata, carried.destroy);
  Options options;
  for (size_t i = 0; i < carried.count; ++i) options.set(carried.keys[i], std::string(carried.texts[i]));
  if (log) options.logger = std::make_shared<Logger>(carried.log_level, std::move(log));
  return options;
}

namespace {

const DriverObject kObject = {
    .struct_size = sizeof(DriverObject),
    .driver_create = driver_create,
    .driver_command = driver_command,
    .agent_create = agent_create,
    .driver_set_command = hvd_driver_set_command,
    .driver_set_discovery = hvd_driver_set_discovery,
    .driver_set_launcher = hvd_driver_set_launcher,
    .driver_worker_exited = hvd_driver_worker_exited,
    .driver_set_output = hvd_driver_set_output,
    .driver_start = hvd_driver_start,
    .driver_wait = hvd_driver_wait,
    .driver_stop = hvd_driver_stop,
    .driver_drain = hvd_driver_drain,
    .driver_undrain = hvd_driver_undrain,
    .driver_scale = hvd_driver_scale,
    .driver_get_status = hvd_driver_get_status,
    .driver_describe = hvd_driver_describe,
    .driver_destroy = hvd_driver_destroy,
    .agent_set_command = hvd_agent_set_command,
    .agent_start = hvd_agent_start,
    .agent_wait = hvd_agent_wait,
    .agent_stop = hvd_agent_stop,
    .agent_drain = hvd_agent_drain,
    .agent_destroy = hvd_agent_destroy,
};

}  // namespace
}  // namespace hvd::api

extern "C" HVD_API const hvd::api::DriverObject* hvd_driver_object(const char* version, const char* directory,
                                                                   hvd_error* error) {
  using hvd::api::guarded;
  const hvd_status status = guarded(error, [&] {
    if (std::strcmp(version, HVD_VERSION_STRING) != 0) {
      throw hvd::Error(HVD_UNAVAILABLE,
                       fmt::format("it is of version {}: expected {}", HVD_VERSION_STRING, version));
    }
    static std::once_flag once;
    std::call_once(once, [&] { hvd::set_own_directory(directory); });
  });
  return status == HVD_OK ? &hvd::api::kObject : nullptr;
}

// The functions of driver.h: arguments are checked here, the rest is hvd::driver::Driver.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "api/guard.h"
#include "api/handles.h"
#include "base/callback.h"
#include "driver/driver.h"
#include "hvd/driver.h"

using hvd::Callback;
using hvd::Error;
using hvd::api::copy_out;
using hvd::api::copy_text;
using hvd::api::guarded;
using hvd::api::required;
using hvd::api::required_text;

struct hvd_driver {
  explicit hvd_driver(hvd::Options options) : driver(std::move(options)) {}
  hvd::driver::Driver driver;
};

namespace {

std::vector<std::string> strings(const char* const* list) {
  std::vector<std::string> result;
  for (; list != nullptr && *list != nullptr; ++list) result.emplace_back(*list);
  return result;
}

/// What add(sink, ...) of a discovery callback fills in.
struct HostSink {
  std::vector<hvd::membership::HostSlots>* hosts;
  bool unnamed = false;
};

void add_host(void* sink, const char* name, int32_t slots) {
  auto* target = static_cast<HostSink*>(sink);
  if (target == nullptr) return;
  if (name == nullptr) {
    target->unnamed = true;
    return;
  }
  target->hosts->push_back({name, slots});
}

}  // namespace

extern "C" {

hvd_status hvd_driver_create(const hvd_options* options, hvd_driver** ret_driver, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_driver, "ret_driver");
    *ret_driver = new hvd_driver(options == nullptr ? hvd::Options() : options->options);
  });
}

hvd_status hvd_driver_set_command(hvd_driver* driver, const char* const* argv, const char* const* environment,
                                  hvd_error* error) {
  return guarded(error, [&] {
    required(driver, "driver");
    required_text(required(argv, "argv"), "argv[0]");
    driver->driver.set_command(strings(argv), strings(environment));
  });
}

hvd_status hvd_driver_set_discovery(hvd_driver* driver, hvd_discover_fn discover, void* userdata,
                                    hvd_destroy_fn destroy, hvd_error* error) {
  return guarded(error, [&, callback = Callback<hvd_discover_fn>(discover, userdata, destroy)] {
    required(driver, "driver");
    if (!callback) throw Error(HVD_INVALID, "discover is NULL");
    driver->driver.set_discovery([callback](std::vector<hvd::membership::HostSlots>* hosts) -> int32_t {
      HostSink sink{hosts};
      const int32_t result = callback(&add_host, static_cast<void*>(&sink));
      if (sink.unnamed)
        throw Error(HVD_UNAVAILABLE, "the discovery callback added a host whose name is NULL");
      return result;
    });
  });
}

hvd_status hvd_driver_set_launcher(hvd_driver* driver, hvd_launch_fn start, hvd_stop_fn stop, void* userdata,
                                   hvd_destroy_fn destroy, hvd_error* error) {
  return guarded(error, [&, callback = Callback<hvd_launch_fn>(start, userdata, destroy)] {
    required(driver, "driver");
    if (!callback) throw Error(HVD_INVALID, "start is NULL");
    if (stop == nullptr) throw Error(HVD_INVALID, "stop is NULL");
    hvd::launch::LaunchFunctions functions;
    functions.start = [callback](const hvd::launch::LaunchRequest& request) {
      std::vector<const char*> environment;
      for (const std::string& entry : request.environment) environment.push_back(entry.c_str());
      environment.push_back(nullptr);
      hvd_launch launch{};
      launch.struct_size = sizeof launch;
      launch.worker = request.worker;
      launch.host = request.host.c_str();
      launch.slot = request.slot;
      launch.environment = environment.data();
      return callback(static_cast<const hvd_launch*>(&launch));
    };
    // The callback keeps the userdata alive for both functions.
    functions.stop = [callback, stop, userdata](uint64_t worker, bool force) {
      stop(userdata, worker, force ? 1 : 0);
    };
    driver->driver.set_launcher(std::move(functions));
  });
}

hvd_status hvd_driver_worker_exited(hvd_driver* driver, uint64_t worker, int32_t exit_status,
                                    hvd_error* error) {
  return guarded(error, [&] {
    required(driver, "driver");
    if (exit_status < 0 || exit_status > 256 + 127) {
      throw Error(HVD_INVALID, fmt::format("exit_status is {}: expected 0 to 255, or 256 + a signal's number",
                                           exit_status));
    }
    driver->driver.worker_exited(worker, exit_status);
  });
}

hvd_status hvd_driver_set_output(hvd_driver* driver, hvd_output_fn output, void* userdata,
                                 hvd_destroy_fn destroy, hvd_error* error) {
  return guarded(error, [&, callback = Callback<hvd_output_fn>(output, userdata, destroy)] {
    required(driver, "driver");
    if (!callback) throw Error(HVD_INVALID, "output is NULL");
    driver->driver.set_output([callback](const hvd::launch::OutputLine& line) {
      callback(line.rank, line.host.c_str(), line.slot, line.is_stderr ? 1 : 0, line.text.c_str());
    });
  });
}

hvd_status hvd_driver_start(hvd_driver* driver, hvd_error* error) {
  return guarded(error, [&] { required(driver, "driver").driver.start(); });
}

hvd_status hvd_driver_wait(hvd_driver* driver, int64_t timeout_ns, hvd_error* error) {
  return guarded(error, [&] {
    required(driver, "driver");
    return driver->driver.wait(hvd::api::timeout_of(timeout_ns, std::chrono::hours(24)));
  });
}

hvd_status hvd_driver_stop(hvd_driver* driver, const char* reason, hvd_error* error) {
  return guarded(error, [&] {
    required(driver, "driver")
        .driver.stop(reason == nullptr || *reason == 0 ? "stopped by the program" : reason);
  });
}

hvd_status hvd_driver_get_status(hvd_driver* driver, hvd_driver_status_info* ret_status, hvd_error* error) {
  return guarded(error, [&] {
    const hvd::driver::DriverStatus status = required(driver, "driver").driver.status();
    hvd_driver_status_info info{};
    info.phase = status.phase;
    info.size = status.size;
    info.workers = status.workers;
    info.slots = status.slots;
    info.resets = status.resets;
    info.generation = status.generation;
    info.membership_epoch = status.epoch;
    info.hosts_blocked = status.hosts_blocked;
    info.port = status.port;
    copy_text(info.sentence, status.sentence);
    copy_text(info.stall, status.stall);
    copy_out(ret_status, info, "ret_status");
  });
}

void hvd_driver_destroy(hvd_driver* driver) { delete driver; }

}  // extern "C"

// The functions hvd_driver_* of driver.h, in hvd-driver.so: arguments are checked here, the rest is
// hvd::driver::Driver.
#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "api/driver_functions.h"
#include "api/guard.h"
#include "api/handle.h"
#include "base/callback.h"
#include "base/thread.h"
#include "driver/driver.h"
#include "driver/operator.h"
#include "hvd/driver.h"

using hvd::Callback;
using hvd::Error;
using hvd::api::copy_out;
using hvd::api::copy_text;
using hvd::api::guarded;
using hvd::api::required;
using hvd::api::required_text;
using hvd::api::Use;

namespace {

/// A driver, and whether calls on it are under way.
struct Core {
  explicit Core(hvd::Options options) : driver(std::move(options)) {}
  hvd::driver::Driver driver;
  std::mutex mutex;
  std::condition_variable left;
  bool unused = false;  // the handle has ended, and the last call on it
};

thread_local const Core* in_callback = nullptr;

/// In a callback of the driver, whose threads can't end the driver.
class InCallback {
 public:
  explicit InCallback(const Core* core) : outer_(std::exchange(in_callback, core)) {}
  InCallback(const InCallback&) = delete;
  InCallback& operator=(const InCallback&) = delete;
  ~InCallback() { in_callback = outer_; }

 private:
  const Core* const outer_;
};

}  // namespace

/// The handle's object: it goes when the handle has ended and the last call on it is out.
struct hvd_driver {
  explicit hvd_driver(hvd::Options options) : core(std::make_shared<Core>(std::move(options))) {}
  hvd_driver(const hvd_driver&) = delete;
  hvd_driver& operator=(const hvd_driver&) = delete;
  ~hvd_driver() {
    std::lock_guard lock(core->mutex);
    core->unused = true;
    core->left.notify_all();
  }
  const std::shared_ptr<Core> core;
};

namespace {

using DriverUse = Use<hvd_driver>;

std::vector<std::string> strings(const char* const* list) {
  std::vector<std::string> result;
  for (; list != nullptr && *list != nullptr; ++list) result.emplace_back(*list);
  return result;
}

/// For the caller, who frees it by hvd_free.
char* allocated(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

/// What add(sink, ...) of a discovery callback fills in.
struct HostSink {
  std::vector<hvd::membership::HostSlots>* hosts;
  std::string refused;  // why one was
};

int32_t add_host(void* sink, const char* name, int32_t slots) {
  auto* target = static_cast<HostSink*>(sink);
  if (target == nullptr || !target->refused.empty()) return 1;
  try {
    if (name == nullptr) {
      target->refused = "a host whose name is NULL";
    } else if (slots < 0) {
      target->refused = fmt::format("host '{}' with {} slots: expected 0 or more", name, slots);
    } else {
      target->hosts->push_back({name, slots});
    }
  } catch (const std::exception&) {
    target->refused = "too much";  // fits the string's own storage
  }
  return target->refused.empty() ? 0 : 1;
}

}  // namespace

hvd_status hvd::api::driver_create(const CarriedOptions* options, hvd_driver** ret_driver, hvd_error* error) {
  return guarded(error, [&] { *ret_driver = make_handle(std::make_shared<hvd_driver>(received(*options))); });
}

hvd_status hvd::api::driver_command(const CarriedOptions* options, const char* verb, const char* argument,
                                    int64_t timeout_ns, char** ret_text, hvd_error* error) {
  return guarded(error, [&] {
    const Options given = received(*options);
    const std::string name = required_text(verb, "verb");
    const std::string text =
        driver::command(driver::address_of(given), name, argument == nullptr ? "" : argument,
                        timeout_of(timeout_ns, std::chrono::seconds(10)));
    *ret_text = allocated(text);
  });
}

extern "C" {

hvd_status hvd_driver_set_command(hvd_driver* driver, const char* const* argv, const char* const* environment,
                                  hvd_error* error) {
  return guarded(error, [&] {
    const DriverUse use(driver, "driver");
    required_text(required(argv, "argv"), "argv[0]");
    use->core->driver.set_command(strings(argv), strings(environment));
  });
}

hvd_status hvd_driver_set_discovery(hvd_driver* driver, hvd_discover_fn discover, void* userdata,
                                    hvd_destroy_fn destroy, hvd_error* error) {
  return guarded(error, [&, callback = Callback<hvd_discover_fn>(discover, userdata, destroy)] {
    const DriverUse use(driver, "driver");
    if (!callback) throw Error(HVD_INVALID, "discover is NULL");
    const auto function = [callback, core = use->core.get(), mask = hvd::SignalMask()](
                              std::vector<hvd::membership::HostSlots>* hosts) -> int32_t {
      const InCallback here(core);
      const hvd::SignalsOf caller(mask);
      HostSink sink{hosts, ""};
      const int32_t result = callback(&add_host, static_cast<void*>(&sink));
      if (!sink.refused.empty()) {
        throw Error(HVD_UNAVAILABLE, "the discovery callback added " + sink.refused);
      }
      return result;
    };
    use->core->driver.set_discovery(function);
  });
}

hvd_status hvd_driver_set_launcher(hvd_driver* driver, hvd_launch_fn start, hvd_stop_fn stop, void* userdata,
                                   hvd_destroy_fn destroy, hvd_error* error) {
  return guarded(error, [&, callback = Callback<hvd_launch_fn>(start, userdata, destroy)] {
    const DriverUse use(driver, "driver");
    const Core* const core = use->core.get();
    if (!callback) throw Error(HVD_INVALID, "start is NULL");
    if (stop == nullptr) throw Error(HVD_INVALID, "stop is NULL");
    hvd::launch::LaunchFunctions functions;
    const hvd::SignalMask mask;
    functions.start = [callback, core, mask](const hvd::launch::LaunchRequest& request) {
      const InCallback here(core);
      const hvd::SignalsOf caller(mask);
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
    functions.stop = [callback, stop, userdata, core, mask](uint64_t worker, bool force) {
      const InCallback here(core);
      const hvd::SignalsOf caller(mask);
      stop(userdata, worker, force ? 1 : 0);
    };
    use->core->driver.set_launcher(std::move(functions));
  });
}

hvd_status hvd_driver_worker_exited(hvd_driver* driver, uint64_t worker, int32_t exit_status,
                                    hvd_error* error) {
  return guarded(error, [&] {
    const DriverUse use(driver, "driver");
    if (exit_status < 0 || exit_status > 256 + 127) {
      throw Error(HVD_INVALID, fmt::format("exit_status is {}: expected 0 to 255, or 256 + a signal's number",
                                           exit_status));
    }
    use->core->driver.worker_exited(worker, exit_status);
  });
}

hvd_status hvd_driver_set_output(hvd_driver* driver, hvd_output_fn output, void* userdata,
                                 hvd_destroy_fn destroy, hvd_error* error) {
  return guarded(error, [&, callback = Callback<hvd_output_fn>(output, userdata, destroy)] {
    const DriverUse use(driver, "driver");
    if (!callback) throw Error(HVD_INVALID, "output is NULL");
    use->core->driver.set_output([callback, core = use->core.get()](const hvd::launch::OutputLine& line) {
      const InCallback here(core);
      std::string text = line.text;
      std::erase(text, '\0');  // it would end the line
      callback(line.rank, line.host.c_str(), line.slot, line.is_stderr ? 1 : 0, text.c_str());
    });
  });
}

hvd_status hvd_driver_start(hvd_driver* driver, hvd_error* error) {
  return guarded(error, [&] { DriverUse(driver, "driver")->core->driver.start(); });
}

hvd_status hvd_driver_wait(hvd_driver* driver, int64_t timeout_ns, hvd_error* error) {
  return guarded(error, [&] {
    const DriverUse use(driver, "driver");
    return use->core->driver.wait(hvd::api::timeout_of(timeout_ns, std::chrono::hours(24)));
  });
}

hvd_status hvd_driver_stop(hvd_driver* driver, const char* reason, hvd_error* error) {
  return guarded(error, [&] {
    const DriverUse use(driver, "driver");
    use->core->driver.stop(reason == nullptr || *reason == 0 ? "stopped by the program" : reason);
  });
}

hvd_status hvd_driver_drain(hvd_driver* driver, const char* host, int64_t timeout_ns, const char* reason,
                            hvd_error* error) {
  return guarded(error, [&] {
    const DriverUse use(driver, "driver");
    hvd::driver::Driver& core = use->core->driver;
    core.drain(required_text(host, "host"), hvd::api::timeout_of(timeout_ns, core.leave_timeout()),
               reason == nullptr ? "" : reason);
  });
}

hvd_status hvd_driver_undrain(hvd_driver* driver, const char* host, hvd_error* error) {
  return guarded(error,
                 [&] { DriverUse(driver, "driver")->core->driver.undrain(required_text(host, "host")); });
}

hvd_status hvd_driver_scale(hvd_driver* driver, int32_t size, hvd_error* error) {
  return guarded(error, [&] { DriverUse(driver, "driver")->core->driver.scale(size); });
}

hvd_status hvd_driver_get_status(hvd_driver* driver, hvd_driver_status_info* ret_status, hvd_error* error) {
  return guarded(error, [&] {
    const DriverUse use(driver, "driver");
    // What an older caller has no room for is not asked for: it takes time.
    const bool all = required(ret_status, "ret_status").struct_size > offsetof(hvd_driver_status_info, term);
    const hvd::driver::DriverStatus status = all ? use->core->driver.snapshot() : use->core->driver.status();
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
    info.try_again = status.try_again ? 1 : 0;
    copy_text(info.sentence, status.sentence);
    copy_text(info.stall, status.stall);
    info.term = status.term;
    info.stalled = status.stalled;
    info.goodput = status.goodput();
    info.commits_per_second = status.commits_per_second;
    info.commits = status.commits;
    info.sync_bytes = status.sync_bytes;
    info.wall_ns = status.wall.count();
    info.last_recovery_ns = status.last_recovery.count();
    copy_out(ret_status, info, "ret_status");
  });
}

hvd_status hvd_driver_describe(hvd_driver* driver, hvd_driver_format format, char** ret_text,
                               hvd_error* error) {
  return guarded(error, [&] {
    required(ret_text, "ret_text");
    if (format < HVD_DRIVER_FORMAT_TEXT || format > HVD_DRIVER_FORMAT_LINE) {
      throw Error(HVD_INVALID,
                  fmt::format("format is {}: expected HVD_DRIVER_FORMAT_TEXT (0) to _LINE (3)", format));
    }
    const DriverUse use(driver, "driver");
    *ret_text = allocated(
        hvd::status::describe(use->core->driver.snapshot(), static_cast<hvd::status::Format>(format)));
  });
}

void hvd_driver_destroy(hvd_driver* driver) {
  guarded(nullptr, [&] {
    std::shared_ptr<Core> core = DriverUse(driver, "driver")->core;
    if (in_callback == core.get()) {
      core->driver.log().error("hvd_driver_destroy was called from a callback: nothing was done");
      return;
    }
    core->driver.close();  // its callbacks may use the handle until then, and whoever waits comes out
    if (hvd::api::end_handle(driver) == nullptr) return;
    std::unique_lock lock(core->mutex);
    core->left.wait_for(lock, std::chrono::minutes(1), [&] { return core->unused; });
  });
}

}  // extern "C"

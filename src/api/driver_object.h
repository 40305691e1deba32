// hvd-driver.so, as libhvd.so knows it. A worker needs no driver and no agent, which are a third of all code.
// So they lie in an object of their own beside the modules, which the first call of driver.h loads. It has
// its own copy of the rooms that both need, so that nothing but the C of this page passes between them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/options.h"
#include "hvd/driver.h"

namespace hvd::api {

/// Options on their way: what the program has set, as text, and where its log goes.
struct CarriedOptions {
  size_t count;
  const char* const* keys;
  const char* const* texts;
  hvd_log_level log_level;  // the least that is written; HVD_LOG_OFF: there is no log
  hvd_log_fn log;
  void* userdata;
  hvd_destroy_fn destroy;  // whoever gets these calls it once, whatever comes of them
};

/// The functions of driver.h. `options` is never NULL.
struct DriverObject {
  size_t struct_size;
  hvd_status (*driver_create)(const CarriedOptions* options, hvd_driver** ret_driver, hvd_error* error);
  hvd_status (*driver_command)(const CarriedOptions* options, const char* verb, const char* argument,
                               int64_t timeout_ns, char** ret_text, hvd_error* error);
  hvd_status (*agent_create)(const CarriedOptions* options, hvd_agent** ret_agent, hvd_error* error);
  decltype(&hvd_driver_set_command) driver_set_command;
  decltype(&hvd_driver_set_discovery) driver_set_discovery;
  decltype(&hvd_driver_set_launcher) driver_set_launcher;
  decltype(&hvd_driver_worker_exited) driver_worker_exited;
  decltype(&hvd_driver_set_output) driver_set_output;
  decltype(&hvd_driver_start) driver_start;
  decltype(&hvd_driver_wait) driver_wait;
  decltype(&hvd_driver_stop) driver_stop;
  decltype(&hvd_driver_drain) driver_drain;
  decltype(&hvd_driver_undrain) driver_undrain;
  decltype(&hvd_driver_scale) driver_scale;
  decltype(&hvd_driver_get_status) driver_get_status;
  decltype(&hvd_driver_describe) driver_describe;
  decltype(&hvd_driver_destroy) driver_destroy;
  decltype(&hvd_agent_set_command) agent_set_command;
  decltype(&hvd_agent_start) agent_start;
  decltype(&hvd_agent_wait) agent_wait;
  decltype(&hvd_agent_stop) agent_stop;
  decltype(&hvd_agent_drain) agent_drain;
  decltype(&hvd_agent_destroy) agent_destroy;
};

/// The symbol of hvd-driver.so. `version` is libhvd.so's, `directory` where that lies, beside which hvd-guard
/// and the modules are looked for. NULL and an error if the two do not fit each other.
inline constexpr char kDriverObjectFile[] = "hvd-driver.so";
inline constexpr char kDriverObjectSymbol[] = "hvd_driver_object";
using DriverObjectFn = const DriverObject* (*)(const char* version, const char* directory, hvd_error* error);

/// Loads the object at the first call, from where `options` say that modules are. Any thread. Throws
/// Error(HVD_UNAVAILABLE) that names each file tried and why it would not do; the next call tries again.
const DriverObject& driver_object(const Options& options);
/// The same if it is loaded, else NULL: then there is no driver and no agent.
const DriverObject* loaded_driver_object() noexcept;

/// In libhvd.so: options, made ready to be carried.
class Carrier {
 public:
  explicit Carrier(const Options& options);
  /// Once.
  CarriedOptions carried();

 private:
  std::vector<std::pair<std::string, std::string>> values_;
  std::vector<const char*> keys_, texts_;
  LoggerPtr logger_;
};

}  // namespace hvd::api

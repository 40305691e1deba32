// The functions of driver.h that libhvd.so exports: each hands its call to hvd-driver.so.
#include "api/driver_object.h"
#include "api/guard.h"
#include "api/handles.h"
#include "api/standalone.h"
#include "hvd/driver.h"

using hvd::Error;
using hvd::Options;
using hvd::Status;
using hvd::api::CarriedOptions;
using hvd::api::Carrier;
using hvd::api::driver_object;
using hvd::api::DriverObject;
using hvd::api::guarded;
using hvd::api::required;
using hvd::api::Use;

namespace {

Options options_of(const hvd_options* options) {
  return options == nullptr ? Options() : Use<hvd_options>(options, "options")->options;
}

/// A call with options, which fills in an error of its own.
template <class Call>
Status with_options(const Options& options, const Call& call) {
  const DriverObject& object = driver_object(options);
  Carrier carrier(options);
  const CarriedOptions carried = carrier.carried();
  hvd_error error = HVD_ERROR_INIT;
  const hvd_status status = call(object, carried, &error);
  return status == HVD_OK ? Status() : Status::from(status, error);
}

/// Any other call. The handle is looked at on the other side.
template <class Function, class... Arguments>
hvd_status forward(Function DriverObject::*function, hvd_error* error, Arguments... arguments) {
  const DriverObject* object = nullptr;
  const hvd_status status = guarded(error, [&] { object = &driver_object(Options()); });
  return object == nullptr ? status : (object->*function)(arguments..., error);
}

/// The same with a callback, whose userdata is let go of where there is no other side.
template <class Function, class... Arguments>
hvd_status forward_callback(Function DriverObject::*function, hvd_error* error, void* userdata,
                            hvd_destroy_fn destroy, Arguments... arguments) {
  const DriverObject* object = nullptr;
  const hvd_status status = guarded(error, [&] { object = &driver_object(Options()); });
  if (object != nullptr) return (object->*function)(arguments..., userdata, destroy, error);
  if (destroy != nullptr) destroy(userdata);
  return status;
}

}  // namespace

hvd_driver* hvd::api::make_driver(const Options& options) {
  hvd_driver* driver = nullptr;
  const Status status =
      with_options(options, [&](const DriverObject& object, const CarriedOptions& carried, hvd_error* error) {
        return object.driver_create(&carried, &driver, error);
      });
  if (!status.ok()) throw Error(status);
  return driver;
}

extern "C" {

hvd_status hvd_driver_create(const hvd_options* options, hvd_driver** ret_driver, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_driver, "ret_driver");
    *ret_driver = hvd::api::make_driver(options_of(options));
  });
}

hvd_status hvd_driver_set_command(hvd_driver* driver, const char* const* argv, const char* const* environment,
                                  hvd_error* error) {
  return forward(&DriverObject::driver_set_command, error, driver, argv, environment);
}

hvd_status hvd_driver_set_discovery(hvd_driver* driver, hvd_discover_fn discover, void* userdata,
                                    hvd_destroy_fn destroy, hvd_error* error) {
  return forward_callback(&DriverObject::driver_set_discovery, error, userdata, destroy, driver, discover);
}

hvd_status hvd_driver_set_launcher(hvd_driver* driver, hvd_launch_fn start, hvd_stop_fn stop, void* userdata,
                                   hvd_destroy_fn destroy, hvd_error* error) {
  return forward_callback(&DriverObject::driver_set_launcher, error, userdata, destroy, driver, start, stop);
}

hvd_status hvd_driver_worker_exited(hvd_driver* driver, uint64_t worker, int32_t exit_status,
                                    hvd_error* error) {
  return forward(&DriverObject::driver_worker_exited, error, driver, worker, exit_status);
}

hvd_status hvd_driver_set_output(hvd_driver* driver, hvd_output_fn output, void* userdata,
                                 hvd_destroy_fn destroy, hvd_error* error) {
  return forward_callback(&DriverObject::driver_set_output, error, userdata, destroy, driver, output);
}

hvd_status hvd_driver_start(hvd_driver* driver, hvd_error* error) {
  return forward(&DriverObject::driver_start, error, driver);
}

hvd_status hvd_driver_wait(hvd_driver* driver, int64_t timeout_ns, hvd_error* error) {
  return forward(&DriverObject::driver_wait, error, driver, timeout_ns);
}

hvd_status hvd_driver_stop(hvd_driver* driver, const char* reason, hvd_error* error) {
  return forward(&DriverObject::driver_stop, error, driver, reason);
}

hvd_status hvd_driver_drain(hvd_driver* driver, const char* host, int64_t timeout_ns, const char* reason,
                            hvd_error* error) {
  return forward(&DriverObject::driver_drain, error, driver, host, timeout_ns, reason);
}

hvd_status hvd_driver_undrain(hvd_driver* driver, const char* host, hvd_error* error) {
  return forward(&DriverObject::driver_undrain, error, driver, host);
}

hvd_status hvd_driver_scale(hvd_driver* driver, int32_t size, hvd_error* error) {
  return forward(&DriverObject::driver_scale, error, driver, size);
}

hvd_status hvd_driver_get_status(hvd_driver* driver, hvd_driver_status_info* ret_status, hvd_error* error) {
  return forward(&DriverObject::driver_get_status, error, driver, ret_status);
}

hvd_status hvd_driver_describe(hvd_driver* driver, hvd_driver_format format, char** ret_text,
                               hvd_error* error) {
  return forward(&DriverObject::driver_describe, error, driver, format, ret_text);
}

hvd_status hvd_driver_command(const hvd_options* options, const char* verb, const char* argument,
                              int64_t timeout_ns, char** ret_text, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_text, "ret_text");
    return with_options(options_of(options),
                        [&](const DriverObject& object, const CarriedOptions& carried, hvd_error* inner) {
                          return object.driver_command(&carried, verb, argument, timeout_ns, ret_text, inner);
                        });
  });
}

void hvd_driver_destroy(hvd_driver* driver) {
  // Without the other side there is none.
  if (const DriverObject* const object = hvd::api::loaded_driver_object()) object->driver_destroy(driver);
}

hvd_status hvd_agent_create(const hvd_options* options, hvd_agent** ret_agent, hvd_error* error) {
  return guarded(error, [&] {
    required(ret_agent, "ret_agent");
    return with_options(options_of(options),
                        [&](const DriverObject& object, const CarriedOptions& carried, hvd_error* inner) {
                          return object.agent_create(&carried, ret_agent, inner);
                        });
  });
}

hvd_status hvd_agent_set_command(hvd_agent* agent, const char* const* argv, const char* const* environment,
                                 hvd_error* error) {
  return forward(&DriverObject::agent_set_command, error, agent, argv, environment);
}

hvd_status hvd_agent_start(hvd_agent* agent, hvd_error* error) {
  return forward(&DriverObject::agent_start, error, agent);
}

hvd_status hvd_agent_wait(hvd_agent* agent, int64_t timeout_ns, hvd_error* error) {
  return forward(&DriverObject::agent_wait, error, agent, timeout_ns);
}

hvd_status hvd_agent_stop(hvd_agent* agent, const char* reason, hvd_error* error) {
  return forward(&DriverObject::agent_stop, error, agent, reason);
}

hvd_status hvd_agent_drain(hvd_agent* agent, int64_t timeout_ns, const char* reason, hvd_error* error) {
  return forward(&DriverObject::agent_drain, error, agent, timeout_ns, reason);
}

void hvd_agent_destroy(hvd_agent* agent) {
  // Without the other side there is none.
  if (const DriverObject* const object = hvd::api::loaded_driver_object()) object->agent_destroy(agent);
}

}  // extern "C"

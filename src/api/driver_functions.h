// The functions of hvd-driver.so that take options, and therefore are not those of driver.h.
#pragma once

#include "api/driver_object.h"

namespace hvd::api {

hvd_status driver_create(const CarriedOptions* options, hvd_driver** ret_driver, hvd_error* error);
hvd_status driver_command(const CarriedOptions* options, const char* verb, const char* argument,
                          int64_t timeout_ns, char** ret_text, hvd_error* error);
hvd_status agent_create(const CarriedOptions* options, hvd_agent** ret_agent, hvd_error* error);

/// Takes charge of what was carried. Throws what Options throws.
Options received(const CarriedOptions& carried);

}  // namespace hvd::api

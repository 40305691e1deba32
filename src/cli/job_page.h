// What hvdrun --http serves: probes, status, metrics, and the page that shows them.
#pragma once

#include "cli/http_server.h"
#include "hvd/driver.h"

namespace hvd::cli {

/// The driver outlives what is returned.
HttpHandler job_pages(hvd_driver* driver);

}  // namespace hvd::cli

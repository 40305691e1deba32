// Jobs without a driver: rank and size from the environment of Open MPI, Slurm, PMI or torchrun, and a
// driver inside rank 0 that serves the others.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/options.h"
#include "hvd/driver.h"

namespace hvd::api {

struct Placement {
  int64_t rank = 0;
  int64_t size = 1;
  std::string source;  // which variables said so
};

/// HVD_RANK and HVD_SIZE, else the launcher's variables; nothing if there are none. Throws
/// Error(HVD_INVALID) if they are unfit or contradict each other.
std::optional<Placement> find_placement(const Options& options);

/// With the identity that this worker will have in a job without a driver, as far as the environment tells.
Options with_identity(Options options);

/// The workers of such a driver are started and ended by somebody else: it need not wait for them. If rank 0
/// goes before the job is over it is a peer that is lost, and the others hear that first.
struct DriverDeleter {
  int64_t workers = 0;
  void operator()(hvd_driver* driver) const {
    hvd_driver_worker_exited(driver, 1, 0, nullptr);
    hvd_driver_stop(driver, "rank 0, which served the job, has left", nullptr);
    for (int64_t id = 2; id <= workers; ++id) {
      hvd_driver_worker_exited(driver, static_cast<uint64_t>(id), 0, nullptr);
    }
    hvd_driver_destroy(driver);
  }
};
/// A driver made from options: see hvd_driver_create.
hvd_driver* make_driver(const Options& options);

using StandaloneDriver = std::unique_ptr<hvd_driver, DriverDeleter>;

/// Completes the options of a worker that has no driver: nothing for a worker that is alone; otherwise
/// its identity and where rank 0 listens, which is told by option rendezvous or, where an MPI launcher
/// started the workers, through MPI. On rank 0 starts the driver there and returns it.
StandaloneDriver prepare_standalone(Options& options);

}  // namespace hvd::api

// The module mpi_elastic (mpich_elastic): collectives by MPI among processes that a driver started one by
// one. It changes the process that loads it: docs/mpi.md says how, and its manifest says in which jobs it is
// loaded.
#include <memory>

#include "modules/mpi/instance.h"
#include "modules/mpi_elastic/generation.h"
#include "modules/mpi_elastic/runtime.h"

namespace hvdmpi {

const char* const kName = HVD_MPI_NAME;

namespace {

struct Apart {
  static void prepare(const Config& config) {
    if (started_by_launcher()) {
      throw Failure(
          HVD_UNAVAILABLE,
          "a launcher of MPI started this process together with others: that is served by the module for "
          "jobs of mpirun and srun, and not by this one");
    }
    ElasticRuntime::get().prepare(config.interface, config.ip);
  }
  static std::shared_ptr<Generation> make(const Config& config, const hvd_backend_host& host) {
    return std::make_shared<ElasticGeneration>(config, host);
  }
};

class ElasticInstance : public Instance<Apart> {
 public:
  static constexpr const char* kName = HVD_MPI_NAME;
  using Instance::Instance;
};

}  // namespace
}  // namespace hvdmpi

HVDKIT_EXPORT_MODULE(hvdmpi::ElasticInstance)

// The module mpi (mpich): collectives by MPI among processes that mpirun or srun started together. It expects
// nothing but the launcher's own variables.
#include <cstring>
#include <memory>
#include <vector>

#include "modules/mpi/instance.h"
#include "modules/mpi/launched.h"

namespace hvdmpi {

const char* const kName = HVD_MPI_NAME;

namespace {

void expect_launcher() {
  if (started_by_launcher()) return;
  throw Failure(HVD_UNAVAILABLE, "this process was not started by a launcher of MPI");
}

World launched_world(Clock::time_point deadline) {
  expect_launcher();
  LaunchedRuntime::get().ready(deadline);
  return LaunchedRuntime::get().first_world();
}

struct Launched {
  static void prepare(const Config&) { expect_launcher(); }
  static std::shared_ptr<Generation> make(const Config& config, const hvd_backend_host& host) {
    return std::make_shared<Generation>(config, host);
  }
};

// When the generations are gone.
struct Closing {
  ~Closing() { LaunchedRuntime::get().closed(); }
};

class LaunchedInstance : private Closing, public Instance<Launched> {
 public:
  static constexpr const char* kName = HVD_MPI_NAME;
  using Instance::Instance;

  static void world(int32_t* rank, int32_t* size, Clock::time_point deadline) {
    const World all = launched_world(deadline);
    *rank = all.rank;
    *size = all.size;
  }

  static void world_broadcast(void* data, size_t size, Clock::time_point deadline) {
    const World all = launched_world(deadline);
    constexpr size_t kMost = size_t{1} << 20;
    if (size > kMost || (size > 0 && data == nullptr)) {
      throw Failure(HVD_INVALID, "a broadcast of " + std::to_string(size) + " bytes: expected at most " +
                                     std::to_string(kMost) + ", not NULL");
    }
    // A copy: the call may outlive this one.
    const auto* bytes = static_cast<const uint8_t*>(data);
    const auto memory = std::make_shared<std::vector<uint8_t>>(bytes, bytes + size);
    const std::shared_ptr<Call> call = Call::start([memory, all] {
      check(MPI_Bcast(memory->data(), static_cast<int>(memory->size()), MPI_BYTE, 0, all.comm), "MPI_Bcast");
    });
    if (!call->wait(deadline)) {
      call->abandon();
      throw Failure(HVD_TIMEOUT,
                    "rank 0 of the " + std::to_string(all.size) +
                        " processes of this launch did not send what it knows before the deadline");
    }
    call->rethrow();
    std::copy(memory->begin(), memory->end(), static_cast<uint8_t*>(data));
  }
};

}  // namespace
}  // namespace hvdmpi

HVDKIT_EXPORT_MODULE(hvdmpi::LaunchedInstance)

#include "modules/mpi/launched.h"

#include <dlfcn.h>

namespace hvdmpi {
namespace {

constexpr std::chrono::hours kFinalize{1};  // some ranks have work to do when others are done
#ifndef OPEN_MPI
constexpr std::chrono::seconds kClosing{10};
#endif

#ifdef OPEN_MPI
// Open MPI (4.1 over Slurm's PMIx) lets a rank out of MPI_Init while another has not registered yet what is called as a
// message comes in: what is sent to that one at once ends it, by a call through a null pointer. So nobody sends before all are out.
// PMIx carries the fence, not MPI. It is the libpmix that MPI uses, if that is a library of its own; its interface is the
// standard's (PMIx_Fence of PMIx 2 and later), whose handles are only passed as null here.
void wait_until_all_have_begun() {
  void* const library = dlopen("libpmix.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  using Fence = int (*)(const void* processes, size_t count, const void* info, size_t info_count);
  const auto fence = reinterpret_cast<Fence>(dlsym(library, "PMIx_Fence"));
  // An error means that the launcher has none to offer: then MPI's own has to do.
  if (fence != nullptr) fence(nullptr, 0, nullptr, 0);
  dlclose(library);
}
#endif

}  // namespace

Runtime& Runtime::get() { return LaunchedRuntime::get(); }

LaunchedRuntime& LaunchedRuntime::get() {
  static auto* const runtime = new LaunchedRuntime;
  return *runtime;
}

void LaunchedRuntime::initialize(int* ret_level) {
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, ret_level), "MPI_Init_thread");
#ifdef OPEN_MPI
  wait_until_all_have_begun();
#endif
}

void LaunchedRuntime::check_teams(const std::vector<size_t>& teams) const {
  if (teams.size() == 1) return;
  throw Failure(HVD_UNAVAILABLE, "the members of this generation belong to " + std::to_string(teams.size()) +
                                     " launches: backend " + kName +
                                     " serves the processes of one mpirun or srun");
}

std::shared_ptr<Call> LaunchedRuntime::finalize() {
  std::lock_guard<std::mutex> lock(ending_mutex_);
  if (ending_ == nullptr && may_finalize()) ending_ = Call::start([] { MPI_Finalize(); });
  return ending_;
}

void LaunchedRuntime::closed() {
#ifndef OPEN_MPI
  if (const std::shared_ptr<Call> ending = finalize()) ending->wait(Clock::now() + kClosing);
#endif
}

void LaunchedRuntime::finish() {
  const std::shared_ptr<Call> ending = finalize();
  if (ending != nullptr && !ending->wait(Clock::now() + kFinalize)) ending->abandon();
}

namespace {
// The module is never unloaded: this runs as the process ends, after its exit handlers.
__attribute__((destructor)) void leave() { LaunchedRuntime::get().finish(); }
}  // namespace

}  // namespace hvdmpi

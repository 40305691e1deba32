// Begins and ends MPI in a process that a launcher started.
#include "modules/mpi/launched.h"

#include <dlfcn.h>

#include <cstring>
#if __has_include(<pmix.h>)
#include <pmix.h>
#endif

namespace hvdmpi {
namespace {

constexpr std::chrono::hours kFinalize{1};    // some ranks have work to do when others are done
constexpr std::chrono::seconds kClosing{10};  // for ranks that may be gone

// A rank must not be sent anything before it has registered what is called as a message comes in, which it
// does within MPI_Init, or it calls through a null pointer. MPI_Init ends with a fence for that. Under Slurm
// (22.05) the fence does not hold: PMIx's fences that carry no data, as this one, go through on all nodes but
// the first before all have come. Those that do carry data hold: so here is one. It asks the libpmix that MPI
// uses, if that is a library of its own.
void wait_until_all_have_begun() {
#if defined(OPEN_MPI) && __has_include(<pmix.h>)
  void* const library = dlopen("libpmix.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  const auto fence = reinterpret_cast<decltype(&PMIx_Fence)>(dlsym(library, "PMIx_Fence"));
  pmix_info_t with_data;
  std::memset(&with_data, 0, sizeof with_data);
  std::strncpy(with_data.key, PMIX_COLLECT_DATA, sizeof with_data.key - 1);
  with_data.value.type = PMIX_BOOL;
  with_data.value.data.flag = true;
  // An error means that the launcher has no PMIx: then MPI's own fence has to do.
  if (fence != nullptr) fence(nullptr, 0, &with_data, 1);
  dlclose(library);
#endif
}

}  // namespace

Runtime& Runtime::get() { return LaunchedRuntime::get(); }

LaunchedRuntime& LaunchedRuntime::get() {
  static auto* const runtime = new LaunchedRuntime;
  return *runtime;
}

void LaunchedRuntime::initialize(int* ret_level) {
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, ret_level), "MPI_Init_thread");
  wait_until_all_have_begun();
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
  if (ending == nullptr) return;
  const std::chrono::seconds patience = hurried() ? kClosing : std::chrono::seconds(kFinalize);
  if (!ending->wait(Clock::now() + patience)) ending->abandon();
}

namespace {
// The module is never unloaded: this runs as the process ends, after its exit handlers.
__attribute__((destructor)) void leave() { LaunchedRuntime::get().finish(); }
}  // namespace

}  // namespace hvdmpi

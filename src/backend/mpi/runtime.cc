#include "runtime.h"

#include <dlfcn.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "backend/links/net.h"
#include "launch.h"
#include "shield.h"

namespace hvdmpi {
namespace {

constexpr std::chrono::seconds kFinalize{2};
constexpr std::chrono::seconds kLeave{5};  // of a thread whose calls take microseconds

#ifdef OPEN_MPI
bool has_environment(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && *value != 0;
}

// Open MPI starts its daemon beside a process that no launcher has started, and ends the process if it can't.
bool daemon_found() {
  const auto runs = [](const std::string& path) { return access(path.c_str(), X_OK) == 0; };
  const char* names[] = {"/orted", "/prte", "/prterun"};
  std::string folders = has_environment("PATH") ? getenv("PATH") : "/usr/local/bin:/usr/bin";
  for (const char* variable : {"OPAL_PREFIX", "OPAL_BINDIR"}) {
    if (!has_environment(variable)) continue;
    folders += std::string(":") + getenv(variable) + ":" + getenv(variable) + "/bin";
  }
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &info) != 0) {
    std::string folder = info.dli_fname;
    for (int up = 0; up < 4 && folder.find('/') != std::string::npos; ++up) {
      folder.resize(folder.rfind('/'));
      folders += ":" + folder + "/bin";
    }
  }
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    for (const char* name : names) {
      if (runs(folders.substr(begin, end - begin) + name)) return true;
    }
    begin = end + 1;
  }
  return false;
}

// The interface that has the address; "" if none has.
std::string name_of(const std::string& address) {
  ifaddrs* all = nullptr;
  if (address.empty() || getifaddrs(&all) != 0) return {};
  std::string name;
  for (const ifaddrs* one = all; one != nullptr && name.empty(); one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const bool v6 = one->ifa_addr->sa_family == AF_INET6;
    if (!v6 && one->ifa_addr->sa_family != AF_INET) continue;
    char text[NI_MAXHOST] = {};
    const socklen_t length = v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (getnameinfo(one->ifa_addr, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    if (address == text) name = one->ifa_name;
  }
  freeifaddrs(all);
  return name;
}
#endif

}  // namespace

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) std::strcpy(text, "an error without a text");
  throw Failure(HVD_PEER_LOST, std::string(what) + ": " + text, -1, code);
}

Runtime& Runtime::get() {
  static auto* const runtime = new Runtime;
  return *runtime;
}

Runtime::Runtime() : launched_(launched_in_group()) { world_.id = hvdlinks::random_token(); }

void Runtime::prepare(const std::string& interface) {
  int begun = 0;
  MPI_Initialized(&begun);
  if (begun != 0) return;
  forget_launcher();
#ifdef OPEN_MPI
  if (!launched_ && !daemon_found()) {
    throw Failure(
        HVD_UNAVAILABLE,
        "Open MPI needs its daemon 'orted' (Debian: openmpi-bin) in a process that mpirun did not start, "
        "and it was found neither in PATH nor beside libmpi");
  }
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 0); };
  set("OMPI_MCA_opal_signal", "");  // contract 10: no signal handlers
  set("OMPI_MCA_mpi_yield_when_idle", "1");
  set("OMPI_MCA_async_mpi_finalize", "1");  // ranks leave when they are done, not when all are
  set("UCX_ERROR_SIGNALS", "");
  if (!launched_) {
    set("OMPI_MCA_hwloc_base_binding_policy", "none");
    set("OMPI_MCA_pml", "ob1");  // the one that lives through a peer's death
    set("OMPI_MCA_memory", "^patcher");
    // A process that dies as it joins keeps others waiting for what it did not tell, and with them all joining in their
    // processes: 7 s with these, 5 minutes or for ever without. Open MPI 4's daemon looks every max_wait seconds, takes
    // twice that off what is left (10 s for addresses, exchange_timeout for all else), and sees only a second step that
    // ends at 0 or below.
    set("OMPI_MCA_pmix_server_max_wait", "7");
    set("OMPI_MCA_pmix_base_exchange_timeout", "14");
    // By name: large messages hang where Open MPI 4.1 is given the address alone.
    if (const std::string name = name_of(interface); !name.empty()) {
      set("OMPI_MCA_btl_tcp_if_include", name);
      set("OMPI_MCA_oob_tcp_if_include", name);
    }
  }
#else
  static_cast<void>(interface);
#endif
}

std::shared_ptr<Call> Runtime::begin() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (beginning_ == nullptr) beginning_ = Call::start([this] { initialize(); });
  return beginning_;
}

void Runtime::ready(Clock::time_point deadline) {
  const std::shared_ptr<Call> call = begin();
  if (!call->wait(deadline)) throw Failure(HVD_TIMEOUT, "MPI_Init_thread did not return before the deadline");
  call->rethrow();
}

void Runtime::initialize() {
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0)
    throw Failure(HVD_UNAVAILABLE, "MPI has been finalized in this process and can't begin again");
  int begun = 0;
  MPI_Initialized(&begun);
  int level = MPI_THREAD_SINGLE;
  if (begun != 0) {
    MPI_Query_thread(&level);
  } else {
    std::optional<SessionHold> hold;
    if (!launched_) hold.emplace();
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    // Also for errors that belong to no communicator.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  }
  if (level < MPI_THREAD_MULTIPLE) {
    throw Failure(HVD_UNAVAILABLE, begun != 0 ? "the program began MPI without MPI_THREAD_MULTIPLE"
                                              : "this MPI does not offer MPI_THREAD_MULTIPLE");
  }
#ifdef OPEN_MPI
  const bool shielded = !launched_ && shield_tcp();
#else
  const bool shielded = false;
#endif
  World world;
  world.id = world_.id;
  check(MPI_Comm_dup(launched_ ? MPI_COMM_WORLD : MPI_COMM_SELF, &world.comm), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(world.comm, MPI_ERRORS_RETURN);
  if (launched_) {
    MPI_Comm_rank(world.comm, &world.rank);
    MPI_Comm_size(world.comm, &world.size);
    check(MPI_Bcast(world.id.data(), static_cast<int>(world.id.size()), MPI_BYTE, 0, world.comm),
          "MPI_Bcast");
  }
  int* bound = nullptr;
  int known = 0;
  // The standard has this attribute on the world, and on no other communicator for sure.
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &known);
  std::lock_guard<std::mutex> lock(mutex_);
  if (known != 0) tag_bound_ = *bound;
  mine_ = begun == 0;
  shielded_ = shielded;
  world_ = launch_world_ = world;
}

bool Runtime::can_join() const {
#ifdef OPEN_MPI
  return has_environment("OMPI_MCA_pmix_server_uri");
#else
  return true;  // or it says so itself
#endif
}

World Runtime::world() {
  std::lock_guard<std::mutex> lock(mutex_);
  return world_;
}

World Runtime::launch_world() {
  std::lock_guard<std::mutex> lock(mutex_);
  return launch_world_;
}

void Runtime::adopt(const World& world) {
  std::lock_guard<std::mutex> lock(mutex_);
  world_ = world;
}

bool Runtime::shielded() {
  std::lock_guard<std::mutex> lock(mutex_);
  return shielded_;
}

void Runtime::enter() {
  std::lock_guard<std::mutex> lock(mutex_);
  ++inside_;
}

void Runtime::leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  --inside_;
  left_.notify_all();
}

void Runtime::wait_for_others(Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (left_.wait_until(lock, std::min(deadline, Clock::now() + kLeave), [this] { return inside_ == 0; }))
    return;
  throw Failure(
      HVD_UNAVAILABLE,
      "a call into MPI for an operation that was given up does not return: this process has to be started anew");
}

void Runtime::disturbed() {
  std::lock_guard<std::mutex> lock(mutex_);
  disturbed_ = true;
}

// mpirun takes a process that ends without MPI_Finalize for one that failed, and ends the others. Processes that no
// launcher started owe it to nobody.
void Runtime::at_exit() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (beginning_ == nullptr || !beginning_->succeeded() || !mine_ || !launched_ || disturbed_) return;
  }
  if (Call::stuck() > 0) return;
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0) return;
  const std::shared_ptr<Call> call = Call::start([] { MPI_Finalize(); });
  if (!call->wait(Clock::now() + kFinalize)) call->abandon();
}

namespace {
// The module is never unloaded: this runs when the program's exit handlers do.
__attribute__((destructor)) void leave() { Runtime::get().at_exit(); }
}  // namespace

}  // namespace hvdmpi

#include "modules/mpi/runtime.h"

#include <dlfcn.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "modules/kit/net.h"
#include "modules/mpi/launch.h"
#include "modules/mpi/pmi.h"
#include "modules/mpi/pmix_client.h"
#include "modules/mpi/shield.h"
#include "modules/mpi/ulfm.h"

namespace hvdmpi {
namespace {

constexpr std::chrono::seconds kFinalize{2};
constexpr std::chrono::seconds kLeave{5};  // of a thread whose calls take microseconds

#ifndef OPEN_MPI
// Limits of MPICH (5.0): 1024 processes that were started apart, where it does not look, and 99 of them on one side of a
// join, where it ends the process.
constexpr int kMostMet = 1000;
constexpr std::chrono::seconds kProbe{7};  // a join that was given up may hold MPICH's lock for 5
constexpr size_t kMostInATeam = 100;

// MPICH takes this signal for itself and says what it does when it comes: contract 10.
class KeepSignal {
 public:
  KeepSignal() { sigaction(SIGUSR1, nullptr, &before_); }
  ~KeepSignal() { sigaction(SIGUSR1, &before_, nullptr); }
  KeepSignal(const KeepSignal&) = delete;
  KeepSignal& operator=(const KeepSignal&) = delete;

 private:
  struct sigaction before_ {};
};

std::string why_apart(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  MPI_Get_library_version(version, &length);
  const std::string first(version, std::strcspn(version, "\n"));
  const char* const last = std::strrchr(text, '\n');  // of a stack of calls the innermost
  return "this MPICH can't join processes that were started apart, as an elastic job needs it: MPICH 5 with libfabric can, "
         "and here is '" +
         first + "', which says: " + (last == nullptr ? text : last + 1);
}
#endif

#ifdef OPEN_MPI
bool has_environment(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && *value != 0;
}

// Version 4 meets through ompi-server, later ones through hvd-pmix-server.
constexpr bool kPmixServer = OMPI_MAJOR_VERSION >= 5;
constexpr const char* kServer = kPmixServer ? "HVD_PMIX_SERVER" : "OMPI_MCA_pmix_server_uri";

// Open MPI 4 starts its daemon beside a process that no launcher has started, and ends the process if it can't.
bool daemon_found() {
  const auto runs = [](const std::string& path) { return access(path.c_str(), X_OK) == 0; };
  const char* names[] = {"/orted"};
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
#endif

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

Runtime::Runtime() : launched_(launched_in_group()) { world_.id = hvdkit::random_token(); }

void Runtime::prepare(const std::string& interface, const std::string& links) {
  int begun = 0;
  MPI_Initialized(&begun);
  if (begun != 0) return;
  forget_launcher();
#ifdef OPEN_MPI
  static_cast<void>(links);  // the driver names the loopback where it is enough
  if (!launched_ && kPmixServer && has_environment(kServer))
    meet_through(getenv(kServer), has_environment("HVD_WORKER") ? getenv("HVD_WORKER") : "1");
  if (!launched_ && !kPmixServer && !daemon_found()) {
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
    set("OMPI_MCA_pml", "ob1");                        // the one that lives through a peer's death
    if (kPmixServer) set("OMPI_MCA_btl", "self,tcp");  // the ones from which deaths are kept
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
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 0); };
  set("MPIR_CVAR_NO_COLLECTIVE_FINALIZE", "1");  // ranks leave when they are done, not when all are
  if (launched_) return;
  // Over UCX it does not connect all who join one after the other (5.0.2), and its ports are longer than they may be
  // on a host with several interfaces.
  set("MPIR_CVAR_CH4_NETMOD", "ofi");
  set("FI_PROVIDER", "tcp");
  static_cast<void>(interface);
  if (const std::string name = name_of(links); !name.empty()) set("FI_TCP_IFACE", name);
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
#ifndef OPEN_MPI
    const KeepSignal keep;
    std::optional<OwnLauncher> launcher;
    if (!launched_) launcher.emplace();
#endif
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
#ifndef OPEN_MPI
    if (!launched_) remove_segments();
    // MPICH 5 tells its launcher in an exit handler that the process has ended in peace, if MPI_Finalize came before: this
    // handler runs before that one.
    std::atexit([] { Runtime::get().at_exit(); });
#endif
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
  if (!launched_ && kPmixServer && has_environment(kServer)) outlive_server();
#else
  const bool shielded = !launched_ && shield_fabric();
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
  std::string apart;
#ifndef OPEN_MPI
  char port[MPI_MAX_PORT_NAME] = {};
  if (!launched_) {
    const int code = MPI_Open_port(MPI_INFO_NULL, port);
    if (code == MPI_SUCCESS) MPI_Close_port(port);
    if (code != MPI_SUCCESS) apart = why_apart(code);
  }
#endif
  int* bound = nullptr;
  int known = 0;
  // The standard has this attribute on the world, and on no other communicator for sure.
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &known);
  const bool fault_tolerance = hvdmpi::fault_tolerant();
  std::lock_guard<std::mutex> lock(mutex_);
  if (known != 0) tag_bound_ = *bound;
  fault_tolerant_ = fault_tolerance;
  mine_ = begun == 0;
  shielded_ = shielded;
  apart_ = apart;
  world_ = launch_world_ = world;
}

bool Runtime::can_join() const {
#ifdef OPEN_MPI
  return has_environment(kServer);
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

void Runtime::adopt(const World& world, int met) {
  const MPI_Comm before = [&] {
    std::lock_guard<std::mutex> lock(mutex_);
    met_ += met;
    return std::exchange(world_, world).comm;
  }();
  if (before != launch_world_.comm) discard(before);
}

void Runtime::check_joining(const std::vector<size_t>& teams) {
#ifdef OPEN_MPI
  static_cast<void>(teams);
#else
  std::lock_guard<std::mutex> lock(mutex_);
  if (!apart_.empty()) throw Failure(HVD_UNAVAILABLE, apart_);
  if (met_ > kMostMet) {
    throw Failure(HVD_UNAVAILABLE,
                  "this process has met " + std::to_string(met_) +
                      " others in MPICH, which counts no further: it has to be started anew");
  }
  for (const size_t team : teams) {
    if (team < kMostInATeam) continue;
    throw Failure(HVD_UNAVAILABLE, "MPICH joins fewer than " + std::to_string(kMostInATeam) +
                                       " processes that were started apart to others, and here are " +
                                       std::to_string(team));
  }
#endif
}

void Runtime::discard(MPI_Comm comm) {
#ifdef OPEN_MPI
  static_cast<void>(comm);
#else
  if (comm == MPI_COMM_NULL || comm == MPI_COMM_SELF || comm == MPI_COMM_WORLD) return;
  std::lock_guard<std::mutex> lock(mutex_);
  discarded_.push_back(comm);
#endif
}

void Runtime::sweep() {
  if (Call::stuck() > 0) return;  // one of them may still use it
  std::vector<MPI_Comm> discarded;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    discarded.swap(discarded_);
  }
  for (MPI_Comm& comm : discarded) MPI_Comm_free(&comm);  // local in MPICH
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
  if (left_.wait_until(lock, std::min(deadline, Clock::now() + kLeave), [this] { return inside_ == 0; })) {
    lock.unlock();
    check_usable(deadline);
    return;
  }
  throw Failure(
      HVD_UNAVAILABLE,
      "a call into MPI for an operation that was given up does not return: this process has to be started anew");
}

// MPICH gives out the numbers of communicators from two stocks, each of which a call that makes one holds until all its
// members have answered. Two that hang may hold both.
void Runtime::check_usable(Clock::time_point deadline) {
#ifdef OPEN_MPI
  static_cast<void>(deadline);
#else
  if (Call::stuck() == 0) return;
  const std::shared_ptr<Call> probe = Call::start([] {
    MPI_Comm comm = MPI_COMM_NULL;
    check(MPI_Comm_dup(MPI_COMM_SELF, &comm), "MPI_Comm_dup");
    MPI_Comm_free(&comm);
  });
  if (probe->wait(std::min(deadline, Clock::now() + kProbe))) return probe->rethrow();
  probe->abandon();
  throw Failure(HVD_UNAVAILABLE,
                "MPICH makes no more communicators in this process, since peers died in the middle of " +
                    std::to_string(Call::stuck() - 1) + " joins: it has to be started anew");
#endif
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

#ifdef OPEN_MPI
namespace {
// The module is never unloaded: this runs when the program's exit handlers do.
__attribute__((destructor)) void leave() { Runtime::get().at_exit(); }
}  // namespace
#endif

}  // namespace hvdmpi

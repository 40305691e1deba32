// What both modules over MPI know of this process's MPI.
#include "modules/mpi/runtime.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>

#include "modules/kit/net.h"
#include "modules/mpi/ulfm.h"

namespace hvdmpi {
namespace {

constexpr std::chrono::seconds kLeave{5};  // of a thread whose calls take microseconds
#ifndef OPEN_MPI
constexpr std::chrono::seconds kProbe{7};  // a join that was given up may hold MPICH's lock for 5
#endif

}  // namespace

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0, begun = 0;
  MPI_Initialized(&begun);  // before that Open MPI would end the process
  if (begun == 0 || MPI_Error_string(code, text, &length) != MPI_SUCCESS)
    std::strcpy(text, "an error without a text");
  throw Failure(HVD_PEER_LOST, std::string(what) + ": " + text, -1, code);
}

const char* library_version() {
#ifdef OPEN_MPI
#define HVDMPI_TEXT_(x) #x
#define HVDMPI_TEXT(x) HVDMPI_TEXT_(x)
  return "Open MPI " HVDMPI_TEXT(OMPI_MAJOR_VERSION) "." HVDMPI_TEXT(OMPI_MINOR_VERSION) "." HVDMPI_TEXT(
      OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION;
#else
  return "MPI";
#endif
}

std::string environment(const char* name) {
  const char* const value = ::secure_getenv(name);
  return value == nullptr ? "" : value;
}

bool started_by_launcher() {
  if (!environment("HVD_DRIVER").empty()) return false;
  for (const char* variable : {
#ifdef OPEN_MPI
           "OMPI_COMM_WORLD_SIZE",
#else
           "PMI_SIZE",
#endif
           "PMI_RANK", "PMIX_RANK"}) {
    if (!environment(variable).empty()) return true;
  }
  return false;
}

Runtime::Runtime() { world_.id = hvdkit::random_token(); }

std::shared_ptr<Call> Runtime::begin() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (beginning_ == nullptr) beginning_ = Call::start([this] { run(); });
  return beginning_;
}

void Runtime::let_begin(Clock::time_point deadline) {
  std::shared_ptr<Call> beginning;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    beginning = beginning_;
  }
  if (beginning != nullptr) beginning->wait(deadline);
}

void Runtime::ready(Clock::time_point deadline) {
  const std::shared_ptr<Call> call = begin();
  if (!call->wait(deadline)) throw Failure(HVD_TIMEOUT, "MPI_Init_thread did not return before the deadline");
  call->rethrow();
}

void Runtime::run() {
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0)
    throw Failure(HVD_UNAVAILABLE, "MPI has been finalized in this process and can't begin again");
  int before = 0;
  MPI_Initialized(&before);
  int level = MPI_THREAD_SINGLE;
  if (before != 0) {
    MPI_Query_thread(&level);
  } else {
    initialize(&level);
    // Also for errors that belong to no communicator.
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    std::lock_guard<std::mutex> lock(mutex_);
    mine_ = true;
  }
  if (level < MPI_THREAD_MULTIPLE) {
    throw Failure(HVD_UNAVAILABLE, before != 0 ? "the program began MPI without MPI_THREAD_MULTIPLE"
                                               : "this MPI does not offer MPI_THREAD_MULTIPLE");
  }
  const MPI_Comm all = begun();
  World world;
  world.id = world_.id;
  check(MPI_Comm_dup(all, &world.comm), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(world.comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(world.comm, &world.rank);
  MPI_Comm_size(world.comm, &world.size);
  check(MPI_Bcast(world.id.data(), static_cast<int>(world.id.size()), MPI_BYTE, 0, world.comm), "MPI_Bcast");
  int* bound = nullptr;
  int known = 0;
  // The standard has this attribute on the world, and on no other communicator for sure.
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &known);
  const bool fault_tolerance = hvdmpi::fault_tolerant();
  std::lock_guard<std::mutex> lock(mutex_);
  if (known != 0) tag_bound_ = *bound;
  fault_tolerant_ = fault_tolerance;
  world_ = first_world_ = world;
}

World Runtime::world() {
  std::lock_guard<std::mutex> lock(mutex_);
  return world_;
}

World Runtime::first_world() {
  std::lock_guard<std::mutex> lock(mutex_);
  return first_world_;
}

void Runtime::adopt(const World& world, int met) {
  MPI_Comm before = MPI_COMM_NULL;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    met_ += met;
    before = std::exchange(world_, world).comm;
    if (before == first_world_.comm) return;
  }
  discard(before);
}

int Runtime::met() {
  std::lock_guard<std::mutex> lock(mutex_);
  return met_;
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

// MPICH gives out the numbers of communicators from two stocks, each of which a call that makes one holds
// until all its members have answered. Two that hang may hold both.
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

bool Runtime::may_finalize() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (beginning_ == nullptr || !beginning_->succeeded() || !mine_ || disturbed_) return false;
  }
  if (Call::stuck() > 0) return false;
  int ended = 0;
  MPI_Finalized(&ended);
  return ended == 0;
}

}  // namespace hvdmpi

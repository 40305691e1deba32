// MPI in this process: begun once, in a thread of its own. What two modules have in common: `mpi`, whose
// processes a launcher started together, and `mpi_elastic`, whose processes were started apart. Each brings
// its own kind of Runtime.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "hvd/backend.hpp"
#include "modules/mpi/call.h"

namespace hvdmpi {

using hvdkit::Failure;

/// The module's name. It defines it.
extern const char* const kName;

/// Throws Failure(HVD_PEER_LOST) with MPI's words if `code` is not MPI_SUCCESS.
void check(int code, const char* what);

/// "Open MPI 4.1.4": what the module was built with.
const char* library_version();

/// Whether an MPI launcher has started this process in a group. A worker that a driver has started is in
/// none, though the driver may itself use srun or mpirun to start it.
bool started_by_launcher();

/// The text of an environment variable; "" if it is not set.
std::string environment(const char* name);

using WorldId = std::array<uint8_t, 16>;

/// Processes that share a communicator. It is never used for data: generations make theirs from it.
struct World {
  WorldId id{};
  int rank = 0, size = 1;
  MPI_Comm comm = MPI_COMM_SELF;
};

class Runtime {
 public:
  /// The process's. Lives for ever. Each module defines it.
  static Runtime& get();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Begins MPI, once. Any thread; returns at once.
  std::shared_ptr<Call> begin();
  /// Begins it and waits. Throws Failure.
  void ready(Clock::time_point deadline);
  /// If it is beginning: waits until it has.
  void let_begin(Clock::time_point deadline);

  /// Throws Failure(HVD_UNAVAILABLE) if teams of these sizes can't be joined to one, as far as this process
  /// can tell before MPI has begun.
  virtual void check_teams(const std::vector<size_t>& teams) const = 0;
  /// The same, once MPI has begun.
  virtual void check_joining(const std::vector<size_t>& /*teams*/) {}

  /// A communicator that is used no more and on which nothing is left behind. MPICH has 2048 for a process's
  /// life.
  void discard(MPI_Comm comm);
  /// Frees those: what is under way in MPI blocks it.
  void sweep();

  World world();
  World first_world();  // as it was when MPI began, whatever has been joined since
  /// met: how many more processes that makes.
  void adopt(const World& world, int met);

  /// A generation's thread begins and ends to call MPI.
  void enter();
  void leave();
  /// Until no thread of earlier generations calls MPI. Throws Failure(HVD_UNAVAILABLE): a call that does not
  /// return keeps MPI's progress from all others in this process.
  void wait_for_others(Clock::time_point deadline);

  /// The newest generation whose members have met: none of them is in a call of an earlier one.
  uint64_t reached() const { return reached_.load(); }
  void reach(uint64_t generation) { reached_.store(generation); }

  /// From here on MPI is not finalized: something of it was left behind.
  void disturbed();
  /// The end of the process may be that of a lost generation: it waits for the others a short time only.
  void hurry() { hurried_.store(true); }
  bool hurried() const { return hurried_.load(); }
  /// The largest tag.
  int tag_bound() const { return tag_bound_; }
  /// Whether MPI tells of deaths, and can end what waits for others: see ulfm.h.
  bool fault_tolerant() const { return fault_tolerant_; }

 protected:
  Runtime();
  ~Runtime() = default;

  /// MPI_Init_thread, and what belongs around it. In the call's thread.
  virtual void initialize(int* ret_level) = 0;
  /// Once MPI has begun, with MPI_THREAD_MULTIPLE and before anything is sent. In the call's thread. Gives
  /// the communicator of the processes that this one begins with.
  virtual MPI_Comm begun() = 0;

  /// Whether MPI was begun here, and nothing is left behind in it.
  bool may_finalize();
  int met();

 private:
  void run();  // in the call's thread
  void check_usable(Clock::time_point deadline);

  std::atomic<uint64_t> reached_{0};
  std::atomic<bool> hurried_{false};
  int tag_bound_ = 32767;
  bool fault_tolerant_ = false;
  std::mutex mutex_;
  std::condition_variable left_;
  int inside_ = 0;  // threads between enter and leave
  std::shared_ptr<Call> beginning_;
  bool mine_ = false;  // this module has begun MPI
  bool disturbed_ = false;
  int met_ = 0;
  std::vector<MPI_Comm> discarded_;
  World world_, first_world_;
};

}  // namespace hvdmpi

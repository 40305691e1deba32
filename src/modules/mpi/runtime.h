// MPI in this process: begun once, in a thread of its own, and ended at exit if all was peace.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "modules/kit/failure.h"
#include "modules/mpi/call.h"

namespace hvdmpi {

using hvdkit::Failure;

constexpr const char* kName = HVD_MPI_NAME;

/// Throws Failure(HVD_PEER_LOST) with MPI's words if `code` is not MPI_SUCCESS.
void check(int code, const char* what);

using WorldId = std::array<uint8_t, 16>;

/// Processes that share a communicator. It is never used for data: generations make theirs from it.
struct World {
  WorldId id{};
  int rank = 0, size = 1;
  MPI_Comm comm = MPI_COMM_SELF;
};

class Runtime {
 public:
  /// The process's. Lives for ever.
  static Runtime& get();

  /// True if an MPI launcher has started this process in a group.
  bool launched() const { return launched_; }

  /// What MPI reads as it begins, where the environment doesn't say otherwise. interface: an address of this host
  /// for MPI's TCP, or "" if the user named none; links: the one that the links use, or "". Throws
  /// Failure(HVD_UNAVAILABLE) with what is missing.
  void prepare(const std::string& interface, const std::string& links);
  /// Begins MPI, once. Any thread; returns at once.
  std::shared_ptr<Call> begin();
  /// Begins it and waits. Throws Failure.
  void ready(Clock::time_point deadline);

  /// Whether processes that were started apart can come together.
  bool can_join() const;
  /// The same, once MPI has begun: throws Failure(HVD_UNAVAILABLE) if this MPI can't join them, or no more than it has.
  void check_joining(const std::vector<size_t>& teams);

  /// A communicator that is used no more and on which nothing is left behind. MPICH has 2048 for a process's life.
  void discard(MPI_Comm comm);
  /// Frees those: what is under way in MPI blocks it.
  void sweep();

  World world();
  World launch_world();  // of the launcher's processes, whatever has been joined since
  /// met: how many more processes that makes.
  void adopt(const World& world, int met);

  /// Whether MPI's TCP is kept from the deaths of peers: see shield.h.
  bool shielded();

  /// A generation's thread begins and ends to call MPI.
  void enter();
  void leave();
  /// Until no thread of earlier generations calls MPI. Throws Failure(HVD_UNAVAILABLE): a call that does not return keeps
  /// MPI's progress from all others in this process.
  void wait_for_others(Clock::time_point deadline);

  /// The newest generation whose members have met: none of them is in a call of an earlier one.
  uint64_t reached() const { return reached_.load(); }
  void reach(uint64_t generation) { reached_.store(generation); }

  /// From here on MPI is not ended at exit: something of it was left behind.
  void disturbed();
  /// The largest tag.
  int tag_bound() const { return tag_bound_; }
  /// Whether MPI tells of deaths, and can end what waits for others: see ulfm.h.
  bool fault_tolerant() const { return fault_tolerant_; }

  void at_exit();

 private:
  Runtime();
  void initialize();  // in the call's thread
  void check_usable(Clock::time_point deadline);

  const bool launched_;
  std::atomic<uint64_t> reached_{0};
  int tag_bound_ = 32767;
  bool fault_tolerant_ = false;
  std::mutex mutex_;
  std::condition_variable left_;
  int inside_ = 0;  // threads between enter and leave
  std::shared_ptr<Call> beginning_;
  bool mine_ = false;  // this module has begun MPI
  bool shielded_ = false;
  bool disturbed_ = false;
  std::string apart_;  // why MPI can't join processes, "" if it can
  int met_ = 0;
  std::vector<MPI_Comm> discarded_;
  World world_, launch_world_;
};

}  // namespace hvdmpi

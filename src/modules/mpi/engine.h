// Runs the collectives of one generation: one thread, nonblocking calls, MPI_Test; without `elastic` blocking
// ones where those are faster. It sleeps while nothing is under way. After an abort it leaves what MPI has
// not finished to MPI, memory included.
#pragma once

#include <mpi.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "hvd/backend.hpp"
#include "modules/mpi/call.h"
#include "modules/mpi/operation.h"

namespace hvdmpi {

using hvdkit::Failure;

struct EngineSetup {
  MPI_Comm comm = MPI_COMM_NULL;  // of this generation alone; null if the rank is alone
  int rank = 0, size = 1;
  uint64_t generation = 0;
  bool staged = true;
  size_t segment_bytes = 0;
  int tag_bound = 0;
  bool fault_tolerant = false;  // see ulfm.h
};

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  /// failed: something went wrong in MPI; reports it and gives the failure that the op ends with.
  static std::shared_ptr<Engine> start(const EngineSetup& setup,
                                       std::function<Failure(const Failure&)> failed);

  /// `done` follows unless this throws.
  void submit(Task task);
  /// Ends every op with HVD_PEER_LOST; from here on no user's memory is touched. Any thread, idempotent.
  void abort();
  /// Before abort: all ranks are done with all ops.
  void leave();
  /// After abort: waits a moment for the thread. `failed` and `done` are not called after it.
  void stop();

  Engine(const EngineSetup& setup, std::function<Failure(const Failure&)> failed);

 private:
  using OperationPtr = std::shared_ptr<Operation>;
  struct Running {
    std::unique_ptr<Slot> slot;
    OperationPtr operation;
    size_t number = 0;
  };

  void run();  // the thread
  bool turn();
  bool begin();
  bool test();
  size_t held() const;                            // bytes of memory under MPI's calls
  bool touch(const std::function<void()>& work);  // the user's memory; false after abort
  void run_exchange(const Operation& operation);  // of some of the ranks, to its end
  MPI_Comm comm_of(const Operation& operation);
  void complete(const OperationPtr& operation, const Failure* failure);
  void fail(const OperationPtr& operation, const Failure& failure);
  void leave_behind();

  const EngineSetup setup_;
  const std::function<Failure(const Failure&)> failed_;

  // The thread's own.
  std::deque<OperationPtr> waiting_;  // the first one's calls are being begun
  std::vector<Running> running_;
  std::vector<std::unique_ptr<Slot>> free_;
  std::map<std::vector<int>, MPI_Comm> parties_;  // not staged: some of the ranks that have had an op
  bool broken_ = false;                           // MPI has failed: nothing is begun any more

  std::mutex memory_;  // held while the user's memory is touched
  std::mutex hooks_;   // held while `failed` or `done` is called by the thread

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, gone_;
  std::deque<OperationPtr> submitted_;
  std::vector<OperationPtr> open_;  // whose `done` has not been called
  std::vector<MPI_Comm> comms_;     // the generation's, and those of parties_
  bool in_peace_ = false, aborted_ = false, stopping_ = false, exited_ = false;
  int thread_ = 0;
};

}  // namespace hvdmpi

// The communicators of libnccl_double.so, and what the ranks of one do together.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hvd/hvd.h"
#include "modules/nccl/double/nccl_double.h"

namespace hvddouble {

using hvdnccl::NcclConfig;
using hvdnccl::NcclResult;
using hvdnccl::NcclUniqueId;
inline constexpr NcclResult kSuccess = 0, kUnhandledCuda = 1, kInternal = 3, kInvalidArgument = 4,
                            kInvalidUsage = 5, kInProgress = 7;

struct Comm;

/// One rank's part in an operation.
struct Entry {
  std::string signature;
  const void* input = nullptr;
  void* output = nullptr;
};

struct Slot {
  std::map<int, Entry> entries;
  std::map<int, std::vector<uint8_t>> results;
  bool computed = false;
};

struct Clique {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  std::set<int> joined, dead, finalized;
  std::map<uint64_t, Slot> slots;
  std::map<std::pair<int, int>, std::deque<std::vector<uint8_t>>> mail;
};

struct Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0, device = 0;
  std::atomic<NcclResult> state{kInProgress};
  std::atomic<bool> aborted{false}, inside{false};
  std::atomic<int> running{0};
  bool finalized = false;
  uint64_t next = 0;
  std::thread background;  // of init, of a launch, or of finalize
  void join() {
    if (background.joinable()) background.join();
  }
};
using CommPtr = std::shared_ptr<Comm>;

struct NcclWorld {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<hvdnccl::NcclComm, CommPtr> communicators;
  std::map<std::string, std::shared_ptr<Clique>> cliques;
  uint64_t ids = 0;
  int version = 22809;
  bool hang_aborts = false;
  std::atomic<NcclResult> async_error{kSuccess};
};

NcclWorld& nccl_world();

struct Call {
  CommPtr comm;
  CuStream stream;
  std::function<void()> work;
  bool sends = false;
};

/// The calls of this thread since ncclGroupStart.
struct Group {
  int depth = 0;
  NcclResult error = kSuccess;
  std::vector<Call> calls;
  std::vector<hvdnccl::NcclComm> aborts;
};
Group& group();

CommPtr find(hvdnccl::NcclComm handle, const char* what);

/// Only one thread at a time may be in a call on a communicator.
class Inside {
 public:
  Inside(CommPtr comm, const char* what) : comm_(std::move(comm)) {
    if (comm_->inside.exchange(true))
      violation(std::string(what) + " while another thread is in a call on the communicator");
  }
  ~Inside() { comm_->inside = false; }

 private:
  const CommPtr comm_;
};

using Compute = std::function<void(Clique&, Slot&)>;

/// Notes a call, and what it does when the group ends.
NcclResult submit(const char* name, hvdnccl::NcclComm handle, CuStream stream,
                  const std::function<std::function<void()>(const CommPtr&)>& make);
/// A call that all ranks make: `compute`, by the last of them, makes every rank's result.
NcclResult collective(const char* name, hvdnccl::NcclComm handle, CuStream stream,
                      const std::string& signature, const void* input, void* output, const Compute& compute);

/// It is a violation unless this is memory of the communicator's device.
void on_device(const CommPtr& comm, const char* name, const void* memory);
std::string sign(const char* name, size_t count, int type, int op = 0, int root = 0);
hvd_dtype dtype_of(int type);
/// The reduction of `count` elements from `offset` (in elements) of every rank's input.
std::vector<uint8_t> reduced(const Clique& clique, const Slot& slot, size_t offset, size_t count, int type,
                             int op);

void abort_one(const CommPtr& comm);
void forget(hvdnccl::NcclComm handle);

}  // namespace hvddouble

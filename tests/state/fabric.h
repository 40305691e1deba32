// Ranks in one process: a backend in memory, with an engine for each rank, and faults on demand.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "collective/engine.h"

namespace hvd::state {

class Fabric {
 public:
  explicit Fabric(int32_t size, uint64_t generation = 1);
  ~Fabric();  // engines first, then the thread

  collective::Engine& engine(int32_t rank) { return *engines_[static_cast<size_t>(rank)]; }
  backend::Instance& instance(int32_t rank);
  int32_t size() const { return static_cast<int32_t>(instances_.size()); }

  /// The generation breaks instead of the index-th broadcast (0: the first).
  void break_at_broadcast(int index) { break_at_ = index; }
  /// The index-th broadcast brings a wrong last byte to its receivers.
  void corrupt_broadcast(int index) { corrupt_at_ = index; }

  /// Called with what the index-th allgather brings to a rank, which may be changed: what a liar hands round.
  using Forge = std::function<void(int32_t to, int index, uint8_t* gathered)>;
  void forge(Forge forge) { forge_ = std::move(forge); }

  /// So many times a rank hears that an operation is done; then the generation breaks, and the others do not
  /// hear of it.
  void break_after_deliveries(int count) { deliveries_left_ = count; }
  int deliveries() const;

  size_t messages() const;
  int broadcasts() const;

 private:
  class Instance;
  struct Pending {
    hvd_backend_op op;
    std::vector<int32_t> ranks;
    std::vector<size_t> counts;
  };
  using Group = std::map<int32_t, Pending>;  // by rank

  Status submit(int32_t rank, const hvd_backend_op& op);
  void post(std::function<void()> event);
  void abort();
  bool delivers();
  std::function<void()> perform(Group group);  // under the lock
  void loop();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> events_;
  std::map<int32_t, Time> wake_;       // ticks asked for, by rank
  std::map<uint64_t, Group> pending_;  // by sequence
  bool stop_ = false, broken_ = false;
  int break_at_ = -1, corrupt_at_ = -1, broadcasts_ = 0, allgathers_ = 0;
  Forge forge_;
  int deliveries_left_ = -1, deliveries_ = 0;
  size_t messages_ = 0;
  std::vector<std::unique_ptr<Instance>> instances_;
  std::vector<std::shared_ptr<collective::Engine>> engines_;
  std::thread thread_;
};

}  // namespace hvd::state

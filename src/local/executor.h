// The operations of an instance, executed one after the other in the order in which they were submitted: by
// a thread of its own, or by one that waits and lends itself.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "local/task.h"

namespace hvd::local {

struct Generation;

/// A submitted operation: what was borrowed for the call of submit alone is copied.
struct Job {
  std::shared_ptr<Generation> generation;
  hvd_backend_op op{};
  std::vector<int32_t> ranks;
  std::vector<size_t> counts;
  std::vector<backend::Part> parts;
  Task task;               // once it has begun
  bool passed_on = false;  // the other backend tells its end
};

class Executor {
 public:
  /// False: the job's peers were late at the deadline, and it is to be run again. Throws nothing.
  using Run = std::function<bool(Job&, Time deadline)>;
  explicit Executor(Run run);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  ~Executor();  // when all that was submitted is done

  /// later: the calling thread will come to lend itself or call nudge; nobody is woken now.
  void submit(std::unique_ptr<Job> job, bool later);
  /// A job to fill in; used again, so that its vectors keep their memory.
  std::unique_ptr<Job> blank();

  /// Executes the first job if there is one and nobody executes. For a thread that lends itself: at the
  /// deadline it leaves what it has begun, and whoever executes next goes on with that.
  bool lend(Time deadline);
  /// Wakes the executor's own thread if there is work for it.
  void nudge();
  bool waiting() const { return waiting_.load(); }

 private:
  void loop();
  bool any() const { return left_ != nullptr || !jobs_.empty(); }
  void execute(std::unique_lock<std::mutex>& lock, Time deadline);

  const Run run_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Job>> jobs_;
  std::unique_ptr<Job> left_;  // begun, and left at a deadline; before all others
  std::vector<std::unique_ptr<Job>> spare_;
  bool executing_ = false, ending_ = false, asleep_ = false;
  std::atomic<bool> waiting_{false};  // whether there are jobs, to be asked without the lock
  std::thread thread_;
};

}  // namespace hvd::local

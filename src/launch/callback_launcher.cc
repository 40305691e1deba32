// Starts workers by callbacks of the program that embeds the driver.
#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "launch/launcher.h"

namespace hvd::launch {
namespace {

// After a stop by force.
constexpr Duration kLastGrace = std::chrono::seconds(5);

/// One thread for the program's callbacks. It owns what it uses: one that hangs can be left behind.
class CallbackThread {
 public:
  explicit CallbackThread(LaunchFunctions functions) : shared_(std::make_shared<Shared>()) {
    shared_->functions = std::move(functions);
    thread_ = start_thread("hvd-launcher", [shared = shared_] { run(*shared); });
  }
  ~CallbackThread() { close(Duration(0)); }
  CallbackThread(const CallbackThread&) = delete;
  CallbackThread& operator=(const CallbackThread&) = delete;

  void call(std::function<void(const LaunchFunctions&)> fn) {
    {
      std::lock_guard lock(shared_->mutex);
      shared_->calls.push_back(std::move(fn));
    }
    shared_->changed.notify_all();
  }

  /// Calls that are queued are still made, for at most `grace`.
  void close(Duration grace) {
    if (!thread_.joinable()) return;
    {
      std::unique_lock lock(shared_->mutex);
      shared_->closed = true;
      shared_->changed.notify_all();
      if (!shared_->changed.wait_for(lock, grace, [&] { return shared_->ended; })) {
        shared_->calls.clear();
        thread_.detach();
        return;
      }
    }
    thread_.join();
  }

 private:
  struct Shared {
    LaunchFunctions functions;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void(const LaunchFunctions&)>> calls;
    bool closed = false, ended = false;
  };

  static void run(Shared& shared) {
    std::unique_lock lock(shared.mutex);
    while (true) {
      shared.changed.wait(lock, [&] { return shared.closed || !shared.calls.empty(); });
      if (shared.calls.empty()) break;
      auto fn = std::move(shared.calls.front());
      shared.calls.pop_front();
      lock.unlock();
      fn(shared.functions);
      fn = nullptr;
      lock.lock();
    }
    lock.unlock();
    shared.functions = {};  // releases the userdata before close returns
    lock.lock();
    shared.ended = true;
    shared.changed.notify_all();
  }

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

class CallbackLauncherImpl final : public CallbackLauncher {
 public:
  CallbackLauncherImpl(Loop& loop, LaunchFunctions functions, LoggerPtr logger, Events events)
      : loop_(loop),
        logger_(std::move(logger)),
        events_(std::move(events)),
        link_(std::make_shared<Link>()),
        thread_(std::move(functions)) {
    link_->loop = &loop;
    link_->owner = this;
  }

  ~CallbackLauncherImpl() override { close(Duration(0)); }

  void start(LaunchRequest request) override {
    const uint64_t id = request.worker;
    workers_.emplace(id, std::make_unique<Worker>(loop_));
    thread_.call([request = std::move(request), link = link_](const LaunchFunctions& functions) {
      const int32_t result = functions.start(request);
      if (result == 0) return;
      std::lock_guard lock(link->mutex);
      if (link->loop == nullptr) return;
      link->loop->post([link, id = request.worker, result] {
        // Only close, on this same thread, takes the owner away.
        if (link->owner != nullptr) link->owner->start_failed(id, result);
      });
    });
  }

  void stop(uint64_t id, Duration grace) override {
    const auto found = workers_.find(id);
    if (found == workers_.end() || found->second->stopping) return;
    found->second->stopping = true;
    ask(id, false);
    found->second->deadline.start(grace, [this, id] { kill(id); });
  }

  void kill(uint64_t id) override {
    const auto found = workers_.find(id);
    if (found == workers_.end() || found->second->forced) return;
    found->second->stopping = found->second->forced = true;
    ask(id, true);
    found->second->deadline.start(kLastGrace, [this, id] {
      logger_->warning("the end of worker {} was not reported within {:g} s after it was stopped by force",
                       id, to_seconds(kLastGrace));
      worker_exited(id, -1);
    });
  }

  void set_rank(uint64_t, int32_t) override {}
  std::optional<int32_t> ended(uint64_t) const override { return std::nullopt; }
  Life life(uint64_t, int64_t) const override { return Life::kUnknown; }

  void worker_exited(uint64_t id, int32_t exit_status) override {
    const auto found = workers_.find(id);
    if (found == workers_.end()) return;
    const std::unique_ptr<Worker> kept = std::move(found->second);  // its timer may be what is calling
    workers_.erase(found);
    events_.exited(id, exit_status);
    events_.gone(id);
  }

  void close(Duration grace) override {
    for (const auto& [id, worker] : workers_) {
      if (!worker->forced) ask(id, true);
    }
    workers_.clear();
    {
      std::lock_guard lock(link_->mutex);
      link_->loop = nullptr;
      link_->owner = nullptr;
    }
    thread_.close(grace);
  }

 private:
  struct Worker {
    explicit Worker(Loop& loop) : deadline(loop) {}
    Loop::Timer deadline;
    bool stopping = false, forced = false;
  };
  /// From the callbacks' thread back here, as long as there is a here.
  struct Link {
    std::mutex mutex;  // guards loop
    Loop* loop = nullptr;
    CallbackLauncherImpl* owner = nullptr;  // the loop's thread only
  };

  void ask(uint64_t id, bool force) {
    thread_.call([id, force](const LaunchFunctions& functions) { functions.stop(id, force); });
  }

  void start_failed(uint64_t id, int32_t result) {
    if (workers_.erase(id) != 0)
      events_.failed(id, fmt::format("the launcher's start callback returned {}", result));
  }

  Loop& loop_;
  const LoggerPtr logger_;
  const Events events_;
  const std::shared_ptr<Link> link_;
  std::map<uint64_t, std::unique_ptr<Worker>> workers_;
  CallbackThread thread_;
};

}  // namespace

std::unique_ptr<CallbackLauncher> make_callback_launcher(Loop& loop, LaunchFunctions functions,
                                                         LoggerPtr logger, Launcher::Events events) {
  return std::make_unique<CallbackLauncherImpl>(loop, std::move(functions), std::move(logger),
                                                std::move(events));
}

}  // namespace hvd::launch

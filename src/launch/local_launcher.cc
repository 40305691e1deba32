// Starts workers as processes of this machine, in the charge of hvd-guard.
#include <csignal>
#include <map>
#include <utility>

#include "base/status.h"
#include "launch/launcher.h"
#include "launch/process.h"
#include "launch/worker_output.h"

namespace hvd::launch {
namespace {

class LocalLauncher final : public Launcher {
 public:
  LocalLauncher(Loop& loop, LocalLauncherConfig config, std::shared_ptr<OutputThread> output,
                std::shared_ptr<Guard> guard, LoggerPtr logger, Events events)
      : loop_(loop),
        config_(std::move(config)),
        output_(std::move(output)),
        guard_(std::move(guard)),
        logger_(std::move(logger)),
        events_(std::move(events)) {}

  ~LocalLauncher() override { close(Duration(0)); }

  void start(LaunchRequest request) override {
    const uint64_t id = request.worker;
    auto worker = std::make_unique<Worker>();
    try {
      worker->output =
          std::make_unique<WorkerOutput>(output_, config_.output_directory, request.host, request.slot, id);
      SpawnSpec spec;
      spec.path = config_.program;
      spec.argv = config_.argv;
      spec.environment = environment_of(request);
      worker->process = Process::start(loop_, std::move(spec), handlers_of(id), options_of(request));
      if (holding_) worker->process->hold_output(true);
    } catch (const Error& error) {
      later([this, id, why = std::string(error.what())] { events_.failed(id, why); });
      return;
    }
    workers_.emplace(id, std::move(worker));
  }

  bool inherit(const InheritedWorker& w) override {
    auto worker = std::make_unique<Worker>();
    const LaunchRequest request{w.worker, w.host, w.slot, {}};
    try {
      worker->output =
          std::make_unique<WorkerOutput>(output_, config_.output_directory, w.host, w.slot, w.worker);
      worker->process = Process::inherit(loop_, {w.pid, w.out, w.err, w.exit_status}, handlers_of(w.worker),
                                         options_of(request));
    } catch (const Error& error) {
      logger_->warning("worker {} can't be taken over: {}", w.worker, error.what());
      return false;
    }
    workers_.emplace(w.worker, std::move(worker));
    return true;
  }

  bool keeps_all(const std::string&) const override { return config_.keeper != nullptr; }

  void stop(uint64_t id, Duration grace) override {
    Worker* worker = find(id);
    if (worker == nullptr || !worker->process->running() || worker->stopping) return;
    worker->stopping = true;
    worker->process->stop(grace, [logger = logger_, id] {
      logger->warning("worker {} did not end within its grace: SIGKILL", id);
    });
  }

  void kill(uint64_t id) override {
    if (Worker* worker = find(id)) worker->process->signal_group(SIGKILL);
  }

  void set_rank(uint64_t id, int32_t rank) override {
    if (Worker* worker = find(id)) worker->output->set_rank(rank);
  }

  std::optional<int32_t> ended(uint64_t id) const override {
    const auto found = workers_.find(id);
    return found == workers_.end() ? std::nullopt : found->second->process->ended();
  }

  Life life(uint64_t id, int64_t process) const override {
    const auto found = workers_.find(id);
    if (found == workers_.end() || !found->second->process->running()) return Life::kEnded;
    return life_of(found->second->process->pid(), process);
  }

  void close(Duration) override {
    for (const auto& [id, worker] : workers_) worker->process->signal_group(SIGKILL);
    for (const auto& [id, worker] : workers_) worker->process->abandon();
    workers_.clear();
  }

 private:
  struct Worker {
    std::shared_ptr<Process> process;
    bool stopping = false;
    std::unique_ptr<WorkerOutput> output;
  };

  Process::Handlers handlers_of(uint64_t id) {
    Process::Handlers handlers;
    handlers.output = [this, id](bool is_stderr, std::string_view bytes) { take(id, is_stderr, bytes); };
    handlers.exited = [this, id](int32_t status) { events_.exited(id, status); };
    handlers.gone = [this, id] { gone(id); };
    handlers.failed = [this, id](const std::string& why) {
      workers_.erase(id);
      events_.failed(id, why);
    };
    return handlers;
  }

  Process::Options options_of(const LaunchRequest& request) const {
    Process::Options options{config_.poll_exit, guard_, false};
    if (config_.keeper) {
      options.keeper = config_.keeper;
      options.kept_as = Keeper::name_of(request.worker);
      options.kept_text = fmt::format("{} {}", request.slot, request.host);
    }
    return options;
  }

  Worker* find(uint64_t id) {
    const auto found = workers_.find(id);
    return found == workers_.end() ? nullptr : found->second.get();
  }

  void later(std::function<void()> fn) {
    loop_.post([alive = std::weak_ptr<int>(alive_), fn = std::move(fn)] {
      if (!alive.expired()) fn();
    });
  }

  std::vector<std::string> environment_of(const LaunchRequest& request) const {
    std::map<std::string, std::string> merged;
    for (const auto* list : {&config_.environment, &request.environment}) {
      for (const std::string& entry : *list) merged[entry.substr(0, entry.find('='))] = entry;
    }
    std::vector<std::string> result;
    for (auto& [name, entry] : merged) result.push_back(std::move(entry));
    return result;
  }

  void take(uint64_t id, bool is_stderr, std::string_view bytes) {
    Worker* worker = find(id);
    if (worker == nullptr) return;
    worker->output->feed(is_stderr, bytes);
    if (!output_->full() || holding_) return;
    // The reader of the job's output is slow: the workers' pipes fill up, and their printing waits.
    holding_ = true;
    for (const auto& [other, w] : workers_) w->process->hold_output(true);
    output_->when_drained([this, &loop = loop_, alive = std::weak_ptr<int>(alive_)] {
      loop.post([this, alive] {
        if (!alive.expired()) release();
      });
    });
  }

  void release() {
    holding_ = false;
    for (const auto& [id, worker] : workers_) worker->process->hold_output(false);
  }

  void gone(uint64_t id) {
    const auto found = workers_.find(id);
    if (found == workers_.end()) return;
    found->second->output->finish();
    workers_.erase(found);
    // Its output was told before anybody learns that it is gone.
    output_->flush([this, id, &loop = loop_, alive = std::weak_ptr<int>(alive_)] {
      loop.post([this, id, alive] {
        if (!alive.expired()) events_.gone(id);
      });
    });
  }

  Loop& loop_;
  const LocalLauncherConfig config_;
  const std::shared_ptr<OutputThread> output_;
  const std::shared_ptr<Guard> guard_;
  const LoggerPtr logger_;
  const Events events_;
  std::map<uint64_t, std::unique_ptr<Worker>> workers_;
  bool holding_ = false;
  const std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace

std::unique_ptr<Launcher> make_local_launcher(Loop& loop, LocalLauncherConfig config,
                                              std::shared_ptr<OutputThread> output,
                                              std::shared_ptr<Guard> guard, LoggerPtr logger,
                                              Launcher::Events events) {
  return std::make_unique<LocalLauncher>(loop, std::move(config), std::move(output), std::move(guard),
                                         std::move(logger), std::move(events));
}

}  // namespace hvd::launch

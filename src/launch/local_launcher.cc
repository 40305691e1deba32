// Starts workers as processes of this machine, in the charge of hvd-guard.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <map>
#include <utility>

#include "base/file.h"
#include "base/status.h"
#include "launch/launcher.h"
#include "launch/process.h"

namespace hvd::launch {
namespace {

/// As the kernel says: the state in /proc/PID/stat stands after the last parenthesis of the name.
Life life_of(pid_t pid) {
  std::string line;
  if (!read_file(fmt::format("/proc/{}/stat", pid), 4096, &line)) return Life::kUnknown;
  const size_t name = line.rfind(')');
  if (name == std::string::npos || name + 2 >= line.size()) return Life::kUnknown;
  switch (line[name + 2]) {
    case 'T':
    case 't': return Life::kStopped;
    case 'Z':
    case 'X': return Life::kEnded;
    default: return Life::kRunning;
  }
}

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
    auto worker = std::make_unique<Worker>(loop_);
    worker->line.host = request.host;
    worker->line.slot = request.slot;
    try {
      if (!config_.output_directory.empty()) {
        const std::filesystem::path folder = std::filesystem::path(config_.output_directory) /
                                             fmt::format("{}.{}.{}", request.host, request.slot, id);
        std::error_code error;
        std::filesystem::create_directories(folder, error);
        if (error) {
          throw Error(HVD_UNAVAILABLE,
                      fmt::format("output directory {} can't be made: {}", folder.string(), error.message()));
        }
        worker->files[0] = folder / "stdout";
        worker->files[1] = folder / "stderr";
      }
      SpawnSpec spec;
      spec.path = config_.program;
      spec.argv = config_.argv;
      spec.environment = environment_of(request);
      Process::Handlers handlers;
      handlers.output = [this, id](bool is_stderr, std::string_view bytes) { take(id, is_stderr, bytes); };
      handlers.exited = [this, id](int32_t status) { events_.exited(id, status); };
      handlers.gone = [this, id] { gone(id); };
      handlers.failed = [this, id](const std::string& why) {
        workers_.erase(id);
        events_.failed(id, why);
      };
      worker->process =
          Process::start(loop_, std::move(spec), std::move(handlers), {config_.poll_exit, guard_, false});
      if (holding_) worker->process->hold_output(true);
    } catch (const Error& error) {
      later([this, id, why = std::string(error.what())] { events_.failed(id, why); });
      return;
    }
    workers_.emplace(id, std::move(worker));
  }

  void stop(uint64_t id, Duration grace) override {
    Worker* worker = find(id);
    if (worker == nullptr || !worker->process->running() || worker->stopping) return;
    worker->stopping = true;
    worker->process->signal_group(SIGTERM);
    worker->deadline.start(grace, [this, id] {
      if (Worker* w = find(id); w != nullptr && w->process->running()) {
        logger_->warning("worker {} did not end within its grace: SIGKILL", id);
        w->process->signal_group(SIGKILL);
      }
    });
  }

  void kill(uint64_t id) override {
    if (Worker* worker = find(id)) worker->process->signal_group(SIGKILL);
  }

  void set_rank(uint64_t id, int32_t rank) override {
    if (Worker* worker = find(id)) worker->line.rank = rank;
  }

  std::optional<int32_t> ended(uint64_t id) const override {
    const auto found = workers_.find(id);
    return found == workers_.end() ? std::nullopt : found->second->process->ended();
  }

  Life life(uint64_t id, int64_t process) const override {
    const auto found = workers_.find(id);
    if (found == workers_.end() || !found->second->process->running()) return Life::kEnded;
    const pid_t leader = found->second->process->pid();
    const auto said = static_cast<pid_t>(process);
    return process > 1 && said == process && ::getpgid(said) == leader ? life_of(said) : life_of(leader);
  }

  void close(Duration) override {
    for (const auto& [id, worker] : workers_) worker->process->signal_group(SIGKILL);
    for (const auto& [id, worker] : workers_) worker->process->abandon();
    workers_.clear();
  }

 private:
  struct Worker {
    explicit Worker(Loop& loop) : deadline(loop) {}
    std::shared_ptr<Process> process;
    Loop::Timer deadline;  // until SIGKILL
    bool stopping = false;
    OutputLine line;  // where its lines come from
    LineSplitter splitters[2];
    std::string files[2];
  };

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
    const size_t index = is_stderr ? 1 : 0;
    if (!worker->files[index].empty()) output_->append(worker->files[index], std::string(bytes));
    worker->splitters[index].feed(bytes,
                                  [&](std::string line) { tell(*worker, is_stderr, std::move(line)); });
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

  void tell(const Worker& worker, bool is_stderr, std::string text) {
    OutputLine line = worker.line;
    line.is_stderr = is_stderr;
    line.text = std::move(text);
    output_->line(std::move(line));
  }

  void gone(uint64_t id) {
    const auto found = workers_.find(id);
    if (found == workers_.end()) return;
    Worker& worker = *found->second;
    for (const size_t index : {0, 1}) {
      worker.splitters[index].finish([&](std::string line) { tell(worker, index == 1, std::move(line)); });
      if (!worker.files[index].empty()) output_->append(worker.files[index], "");
    }
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

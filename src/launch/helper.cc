// Runs a backend's helper program, with directories of the job's own.
#include "launch/helper.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "launch/job_directory.h"

namespace hvd::launch {
namespace {

constexpr std::chrono::seconds kPatience{4};  // for it to end by itself
constexpr unsigned kStepUs = 5000;
constexpr size_t kMostSaid = 2000;
constexpr const char* kKept = "helper";

}  // namespace

Helper::Helper(Loop& loop, HelperConfig config, std::shared_ptr<Guard> guard, LoggerPtr logger, Events events)
    : config_(std::move(config)),
      guard_(std::move(guard)),
      logger_(std::move(logger)),
      events_(std::move(events)),
      loop_(loop),
      deadline_(loop) {
  if (inherit()) return;
  try {
    make_directories();
    start_program();
  } catch (...) {
    remove_job_directories(directories_);
    throw;
  }
}

Helper::~Helper() {
  deadline_.cancel();
  told_ = true;
  process_->signal_group(SIGTERM);
  const Time deadline = now() + kPatience;
  while (process_->running() && !process_->ended() && now() < deadline) ::usleep(kStepUs);
  process_->abandon();
  for (const std::string& directory : remove_job_directories(directories_)) {
    logger_->warning("directory {} of this job could not be removed: {}", directory, std::strerror(errno));
  }
}

void Helper::make_directories() {
  const char* const temporary = ::secure_getenv("TMPDIR");
  const std::string base = temporary != nullptr && *temporary == '/' ? temporary : "/tmp";
  const auto make = [&](const std::string& where) {
    std::string path = make_job_directory(where);
    if (path.empty()) return path;
    directories_.push_back(path);
    if (guard_) guard_->add_directory(path);
    return path;
  };
  directory_ = make(base);
  if (directory_.empty()) {
    throw Error(HVD_UNAVAILABLE, fmt::format("no directory for the files of {} can be made in {}: {}",
                                             config_.program, base, std::strerror(errno)));
  }
  if (!config_.local) return;
  memory_ = make("/dev/shm");
  if (memory_.empty()) memory_ = directory_;
}

void Helper::start_program() {
  SpawnSpec spec;
  spec.path = config_.program;
  spec.argv = {config_.program,
               "directory=" + directory_,
               "memory=" + memory_,
               "listen=" + config_.listen,
               "interface=" + config_.interface,
               fmt::format("local={}", config_.local ? 1 : 0)};
  spec.environment = config_.environment;
  process_ = Process::start(loop_, std::move(spec), handlers(), {false, guard_, true});
  deadline_.start(config_.timeout, [this] {
    tell(Status(HVD_UNAVAILABLE, fmt::format("{} was not ready within {:g} s{}", config_.program,
                                             to_seconds(config_.timeout), said_)));
  });
}

Process::Handlers Helper::handlers() {
  Process::Handlers handlers;
  handlers.output = [this](bool is_stderr, std::string_view bytes) {
    lines_[is_stderr ? 1 : 0].feed(bytes, [&](const std::string& text) { line(is_stderr, text); });
  };
  handlers.exited = [this](int32_t status) { exited(status); };
  handlers.gone = [this] { gone(); };
  handlers.failed = [this](const std::string& why) { tell(Status(HVD_UNAVAILABLE, why)); };
  return handlers;
}

/// The one that an earlier driver has started: the workers that it serves are there still.
bool Helper::inherit() {
  if (!config_.keeper) return false;
  std::optional<Kept> kept = config_.keeper->take(kKept);
  if (!kept || kept->descriptors.size() != 2) return false;
  std::vector<std::string> lines;  // process, directory, memory, variables
  LineSplitter splitter;
  splitter.feed(kept->text + "\n", [&](const std::string& text) { lines.push_back(text); });
  const pid_t pid = lines.size() < 3 ? -1 : static_cast<pid_t>(std::atoi(lines[0].c_str()));
  if (pid <= 1) return false;
  directory_ = lines[1];
  memory_ = lines[2];
  directories_ = {directory_};
  if (memory_ != directory_) directories_.push_back(memory_);
  for (size_t i = 3; i < lines.size(); ++i) {
    if (variables_.take(lines[i])) rules_ += lines[i] + "\n";
  }
  process_ =
      Process::inherit(loop_, {pid, kept->descriptors[0], kept->descriptors[1], config_.keeper->ended(kKept)},
                       handlers(), {false, guard_, true, config_.keeper, kKept, ""});
  logger_->debug("{} (process {}) of the driver before this one goes on", config_.program, pid);
  told_ = true;
  loop_.post([started = events_.started] { started({}); });
  return true;
}

void Helper::line(bool is_stderr, const std::string& text) {
  if (text.empty()) return;
  if (!is_stderr && !told_) {
    if (text == "ready") {
      said_.clear();
      logger_->debug("{} (process {}) is ready", config_.program, process_->pid());
      if (config_.keeper) {
        process_->keep(config_.keeper, kKept, fmt::format("\n{}\n{}\n{}", directory_, memory_, rules_));
      }
      return tell({});
    }
    if (variables_.take(text)) {
      rules_ += text + "\n";
      return;
    }
  }
  if (said_.size() < kMostSaid) said_ += (said_.empty() ? "; it says: " : " | ") + text;
  logger_->debug("{}: {}", config_.program, text);
}

void Helper::exited(int32_t status) {
  ending_ = fmt::format("{} (process {}) {}", config_.program, process_->pid(), exit_text(status));
}

// What it says at the last belongs to the reason.
void Helper::gone() {
  for (const bool is_stderr : {false, true})
    lines_[is_stderr ? 1 : 0].finish([&](const std::string& text) { line(is_stderr, text); });
  if (!told_) return tell(Status(HVD_UNAVAILABLE, fmt::format("{} before it was ready{}", ending_, said_)));
  if (const auto died = std::exchange(events_.died, nullptr)) died(ending_ + said_);
}

void Helper::tell(const Status& status) {
  if (std::exchange(told_, true)) return;
  deadline_.cancel();
  if (!status.ok()) events_.died = nullptr;
  if (events_.started) events_.started(status);
}

}  // namespace hvd::launch

// The output thread: prefixes, files and the program's hook.
#include "launch/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/file.h"
#include "base/thread.h"

namespace hvd::launch {
namespace {

constexpr std::chrono::milliseconds kPause{10};  // before memory is asked for again
constexpr size_t kPiece = 4 << 10;  // of what a worker prints; then the thread looks whether it is to end

}  // namespace

void LineSplitter::feed(std::string_view bytes, const std::function<void(std::string line)>& line) {
  while (!bytes.empty()) {
    const size_t newline = bytes.find('\n');
    const size_t room = max_line_ - rest_.size();
    const size_t take =
        std::min({newline == std::string_view::npos ? bytes.size() : newline, room, bytes.size()});
    rest_.append(bytes.substr(0, take));
    bytes.remove_prefix(take);
    if (!bytes.empty() && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      if (!cut_ || !rest_.empty()) line(std::exchange(rest_, {}));
      cut_ = false;
    } else if (rest_.size() == max_line_) {
      line(std::exchange(rest_, {}));
      cut_ = true;
    }
  }
}

void LineSplitter::finish(const std::function<void(std::string line)>& line) {
  if (!rest_.empty()) line(std::exchange(rest_, {}));
  cut_ = false;
}

std::string prefixed(const OutputLine& line) {
  if (line.rank >= 0) return fmt::format("[{}] {}\n", line.rank, line.text);
  return fmt::format("[{}:{}] {}\n", line.host, line.slot, line.text);
}

namespace {

/// Blocks until all is written or the reader is gone.
bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

}  // namespace

OutputFunction standard_output() {
  return [](const OutputLine& line) {
    write_all(line.is_stderr ? STDERR_FILENO : STDOUT_FILENO, prefixed(line));
  };
}

struct OutputThread::State {
  struct Item {
    std::function<void()> run;
    size_t bytes = 0;  // 0: no output, but what somebody waits for
  };
  OutputFunction output;
  LoggerPtr logger;
  size_t max_queued = 0;

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> queue;
  size_t queued = 0;
  bool stopping = false;
  std::atomic<bool> abandoned{false};  // what is left is told to nobody
  bool ended = false;
  std::vector<std::function<void()>> drained;
  std::map<std::string, int> files;  // the thread's own, and so is
  uint64_t dropped = 0;              // pieces of output that there was no memory for

  void push(std::function<void()> run, size_t bytes) {
    {
      std::lock_guard lock(mutex);
      if (stopping) return;
      queue.push_back({std::move(run), bytes});
      queued += bytes;
    }
    changed.notify_all();
  }

  void open(const std::string& path, int folder, const char* name) {
    constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
    Descriptor file(::openat(folder, name, kFlags, 0600));
    struct stat info {};
    if (file.get() < 0 || ::fstat(file.get(), &info) != 0)
      return logger->error("output file {} can't be opened: {}", path, std::strerror(errno));
    if (S_ISREG(info.st_mode) && info.st_nlink > 1) {
      return logger->error(
          "output file {} can't be opened: it has a second name (hard link), and may be somebody else's",
          path);
    }
    const auto [at, fresh] = files.emplace(path, file.get());
    if (fresh) file.release();
  }

  void append(const std::string& path, const std::string& bytes) {
    const auto file = files.find(path);
    if (file == files.end()) return;
    if (bytes.empty()) {
      if (file->second >= 0) ::close(file->second);
      files.erase(file);
      return;
    }
    if (file->second >= 0 && !write_all(file->second, bytes)) {
      logger->error("output file {} can't be written, its output is lost from here on: {}", path,
                    std::strerror(errno));
      ::close(file->second);
      file->second = -1;
    }
  }

  static bool attempt(const std::function<void()>& fn) noexcept try {
    fn();
    return true;
  } catch (const std::exception&) {
    return false;  // no memory
  }

  // Somebody waits for this: it is tried until there is memory for it.
  void insist(const std::function<void()>& fn) const {
    while (!attempt(fn) && !abandoned) std::this_thread::sleep_for(kPause);
  }

  void tell(const std::function<void()>& fn) {
    if (!attempt(fn)) {
      ++dropped;
    } else if (dropped > 0 && attempt([this] {
                 logger->error("no memory was left for {} piece(s) of workers' output, which are lost",
                               dropped);
               })) {
      dropped = 0;
    }
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return stopping || !queue.empty(); });
      if (queue.empty()) break;
      Item item = std::move(queue.front());
      queue.pop_front();
      lock.unlock();
      if (item.bytes > 0) {
        tell(item.run);
      } else {
        insist(item.run);
      }
      item.run = nullptr;
      lock.lock();
      queued -= item.bytes;
      if (queued <= max_queued / 2 && !drained.empty()) {
        std::vector<std::function<void()>> ready = std::exchange(drained, {});
        lock.unlock();
        for (const auto& fn : ready) insist(fn);
        lock.lock();
      }
    }
    for (const auto& [path, fd] : files) {
      if (fd >= 0) ::close(fd);
    }
    ended = true;
    changed.notify_all();
  }
};

OutputThread::OutputThread(OutputFunction output, LoggerPtr logger, size_t max_queued)
    : state_(std::make_shared<State>()) {
  state_->output = std::move(output);
  state_->logger = std::move(logger);
  state_->max_queued = max_queued;
  // With SIGPIPE blocked: a reader that is gone must not end the program that embeds the driver (contract
  // 10).
  thread_ = start_thread("hvd-output", [state = state_] { state->run(); });
}

OutputThread::~OutputThread() {
  {
    std::unique_lock lock(state_->mutex);
    state_->stopping = true;
    state_->changed.notify_all();
    state_->changed.wait_for(lock, std::chrono::seconds(1), [&] { return state_->ended; });
    state_->abandoned = true;
    state_->queue.clear();
    state_->drained.clear();
    state_->changed.wait_for(lock, std::chrono::seconds(1), [&] { return state_->ended; });
    // A write that blocks for ever can't be interrupted: the thread keeps its state and is left behind.
    if (!state_->ended) {
      thread_.detach();
      return;
    }
  }
  thread_.join();
}

void OutputThread::lines(std::shared_ptr<LineSplitter> splitter, OutputLine line, std::string bytes) {
  const size_t size = bytes.size() + 64;
  auto tell = [state = state_.get(), splitter = std::move(splitter), line = std::move(line),
               bytes = std::move(bytes)]() mutable {
    const auto tell_line = [&](std::string text) {
      if (state->abandoned) return;
      line.text = std::move(text);
      state->output(line);
    };
    for (std::string_view rest = bytes; !rest.empty() && !state->abandoned;) {
      const size_t size = std::min(rest.size(), kPiece);
      splitter->feed(rest.substr(0, size), tell_line);
      rest.remove_prefix(size);
    }
  };
  state_->push(std::move(tell), size);
}

void OutputThread::last_line(std::shared_ptr<LineSplitter> splitter, OutputLine line) {
  auto tell = [state = state_.get(), splitter = std::move(splitter), line = std::move(line)]() mutable {
    splitter->finish([&](std::string text) {
      line.text = std::move(text);
      state->output(line);
    });
  };
  state_->push(std::move(tell), 64);
}

void OutputThread::open(const std::string& path, Descriptor folder) {
  state_->push(
      [state = state_.get(), path, place = std::make_shared<Descriptor>(std::move(folder))] {
        for (const char* name : {"stdout", "stderr"}) state->open(path_in(path, name), place->get(), name);
      },
      64);
}

void OutputThread::append(const std::string& path, std::string bytes) {
  const size_t size = bytes.size() + 64;
  state_->push([state = state_.get(), path, bytes = std::move(bytes)] { state->append(path, bytes); }, size);
}

bool OutputThread::full() const {
  std::lock_guard lock(state_->mutex);
  return state_->queued > state_->max_queued;
}

void OutputThread::when_drained(std::function<void()> fn) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->queued > state_->max_queued / 2) {
      state_->drained.push_back(std::move(fn));
      return;
    }
  }
  fn();
}

void OutputThread::flush(std::function<void()> fn) { state_->push(std::move(fn), 0); }

}  // namespace hvd::launch

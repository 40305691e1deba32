#include "launch/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <asio.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/status.h"

extern char** environ;

namespace hvd::launch {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(20);
constexpr int kReapAttempts =
    5000;  // of a millisecond: one in the kernel's uninterruptible sleep is left behind
constexpr Duration kDrainTime = std::chrono::seconds(2);

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Away from 0, 1 and 2, which a program that closed them would otherwise hand to its children mixed up.
Descriptor above_standard(Descriptor fd, const char* what) {
  if (fd.get() > STDERR_FILENO) return fd;
  Descriptor moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (moved.get() < 0)
    throw Error(HVD_UNAVAILABLE, fmt::format("no descriptor for {}: {}", what, std::strerror(errno)));
  return moved;
}

struct Pipe {
  Descriptor read, write;
  Pipe() {
    std::array<int, 2> fds{};
    if (::pipe2(fds.data(), O_CLOEXEC) != 0) {
      throw Error(HVD_UNAVAILABLE, fmt::format("no pipe for a child process: {}", std::strerror(errno)));
    }
    read = Descriptor(fds[0]);
    write = Descriptor(fds[1]);
    read = above_standard(std::move(read), "a pipe");
    write = above_standard(std::move(write), "a pipe");
  }
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

int32_t status_of(const siginfo_t& info) {
  return info.si_code == CLD_EXITED ? info.si_status & 0xff : 256 + info.si_status;
}

}  // namespace

pid_t spawn(const SpawnSpec& spec) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  const auto stream = [&](int fd, int target, int flags) {
    if (fd >= 0) {
      posix_spawn_file_actions_adddup2(&actions, fd, target);
    } else {
      posix_spawn_file_actions_addopen(&actions, target, "/dev/null", flags, 0);
    }
  };
  stream(spec.in, STDIN_FILENO, O_RDONLY);
  stream(spec.out, STDOUT_FILENO, O_WRONLY);
  stream(spec.err, STDERR_FILENO, O_WRONLY);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(
      &attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
                                      (spec.own_session ? POSIX_SPAWN_SETSID : POSIX_SPAWN_SETPGROUP)));
  std::vector<char*> argv = pointers(spec.argv);
  std::vector<char*> environment = pointers(spec.environment);
  pid_t pid = -1;
  const int error =
      ::posix_spawn(&pid, spec.path.c_str(), &actions, &attributes, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    Status status(HVD_UNAVAILABLE, fmt::format("{} can't be started: {}", spec.path, std::strerror(error)));
    status.vendor_code = error;
    throw Error(status);
  }
  return pid;
}

std::string find_program(const std::string& name) {
  const auto executable = [](const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
  };
  if (name.empty()) throw Error(HVD_UNAVAILABLE, "command not found: its name is empty");
  if (name.find('/') != std::string::npos) {
    if (executable(name)) return name;
    throw Error(HVD_UNAVAILABLE, fmt::format("command not found: {} is no executable file", name));
  }
  const char* variable = std::getenv("PATH");
  const std::string path = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    std::string candidate = path.substr(begin, end - begin);
    candidate = (candidate.empty() ? "." : candidate) + "/" + name;
    if (executable(candidate)) return candidate;
    begin = end + 1;
  }
  throw Error(HVD_UNAVAILABLE,
              fmt::format("command not found: {} is in no directory of PATH ({})", name, path));
}

std::vector<std::string> merged_environment(const std::vector<std::string>& ours) {
  std::map<std::string, std::string> merged;
  const auto add = [&](const std::string& entry) { merged[entry.substr(0, entry.find('='))] = entry; };
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) add(*entry);
  for (const std::string& entry : ours) add(entry);
  std::vector<std::string> result;
  for (auto& [name, entry] : merged) result.push_back(std::move(entry));
  return result;
}

std::string exit_text(int32_t exit_status) {
  if (exit_status < 0) return "ended, its status is not known";
  if (exit_status < 256) return fmt::format("exited with status {}", exit_status);
  const int signal = exit_status - 256;
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("killed by signal {}", signal)
                         : fmt::format("killed by signal {} (SIG{})", signal, name);
}

struct Process::Impl {
  struct Stream {
    explicit Stream(asio::io_context& io) : descriptor(io) {}
    asio::posix::stream_descriptor descriptor;
    std::array<char, size_t{64} << 10> buffer{};
    bool open = true;
    bool reading = false;
  };

  Impl(Loop& l, Handlers h)
      : loop(l),
        io(*static_cast<asio::io_context*>(l.native())),
        handlers(std::move(h)),
        watch(io),
        streams{Stream(io), Stream(io)},
        timer(l) {}

  Loop& loop;
  asio::io_context& io;
  Handlers handlers;
  pid_t pid = -1;
  bool reaped = false;
  bool held = false;
  bool told_gone = false;
  asio::posix::stream_descriptor watch;  // pidfd
  std::array<Stream, 2> streams;
  Loop::Timer timer;  // polls for the end; later bounds the draining

  void read(const std::shared_ptr<Process>& self, size_t index) {
    Stream& stream = streams.at(index);
    if (!stream.open || stream.reading || held) return;
    stream.reading = true;
    stream.descriptor.async_read_some(
        asio::buffer(stream.buffer),
        [this, self, index, &stream](const asio::error_code& error, size_t size) {
          stream.reading = false;
          if (!stream.open) return;
          if (error) {
            close(stream);
          } else {
            handlers.output(index == 1, std::string_view(stream.buffer.data(), size));
            read(self, index);
          }
          maybe_gone();
        });
  }

  static void close(Stream& stream) {
    stream.open = false;
    asio::error_code ignored;
    stream.descriptor.close(ignored);
  }

  /// A grandchild may keep the pipe open for ever: take what is there and be done.
  void give_up_draining() {
    for (size_t index = 0; index < streams.size(); ++index) {
      Stream& stream = streams.at(index);
      if (!stream.open) continue;
      for (size_t taken = 0; taken < size_t{1} << 20;) {
        const ssize_t n =
            ::read(stream.descriptor.native_handle(), stream.buffer.data(), stream.buffer.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        taken += static_cast<size_t>(n);
        handlers.output(index == 1, std::string_view(stream.buffer.data(), static_cast<size_t>(n)));
      }
      close(stream);
    }
    maybe_gone();
  }

  void maybe_gone() {
    if (!reaped || told_gone || streams[0].open || streams[1].open) return;
    told_gone = true;
    timer.cancel();
    handlers.gone();
  }

  std::optional<int32_t> ended() const {
    siginfo_t info{};
    int result = 0;
    do {
      result = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
    } while (result != 0 && errno == EINTR);
    if (result != 0) return -1;  // ECHILD: somebody else reaped it, or SIGCHLD is ignored
    if (info.si_pid == 0) return std::nullopt;
    return status_of(info);
  }

  void reap() {
    // Alive or a zombie, the leader is still there, so that its number can't be anybody else's group.
    if (ended() != -1) ::kill(-pid, SIGKILL);
    if (handlers.reaping) handlers.reaping();
    siginfo_t info{};
    for (int i = 0; i < kReapAttempts; ++i) {
      const int result = ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG);
      if ((result == 0 && info.si_pid == pid) || (result != 0 && errno != EINTR)) break;
      ::usleep(1000);
    }
    reaped = true;
    asio::error_code ignored;
    watch.close(ignored);
  }

  void check(const std::shared_ptr<Process>& self) {
    if (reaped) return;
    const std::optional<int32_t> status = ended();
    if (!status) {
      wait(self);
      return;
    }
    reap();
    timer.start(kDrainTime, [weak = self->weak_from_this()] {
      if (auto process = weak.lock()) process->impl_->give_up_draining();
    });
    handlers.exited(*status);
    maybe_gone();
  }

  void wait(const std::shared_ptr<Process>& self) {
    if (watch.is_open()) {
      watch.async_wait(asio::posix::stream_descriptor::wait_read,
                       [this, self](const asio::error_code& error) {
                         if (!error) check(self);
                       });
    } else {
      timer.start(kPollInterval, [weak = self->weak_from_this()] {
        if (auto process = weak.lock()) process->impl_->check(process);
      });
    }
  }
};

Process::Process(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

std::shared_ptr<Process> Process::start(Loop& loop, SpawnSpec spec, Handlers handlers, bool poll_exit) {
  std::shared_ptr<Process> process(new Process(std::make_unique<Impl>(loop, std::move(handlers))));
  Impl& impl = *process->impl_;
  {
    Pipe out;
    Pipe err;
    spec.out = out.write.get();
    spec.err = err.write.get();
    impl.pid = spawn(spec);
    impl.streams[0].descriptor.assign(out.read.release());
    impl.streams[1].descriptor.assign(err.read.release());
  }
#ifdef SYS_pidfd_open
  if (!poll_exit) {
    const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, impl.pid, 0));
    if (pidfd >= 0) impl.watch.assign(pidfd);
  }
#endif
  impl.read(process, 0);
  impl.read(process, 1);
  impl.wait(process);
  return process;
}

Process::~Process() = default;

pid_t Process::pid() const { return impl_->pid; }
bool Process::running() const { return !impl_->reaped; }

void Process::signal_group(int signal) {
  if (!impl_->reaped) ::kill(-impl_->pid, signal);
}

std::optional<int32_t> Process::ended() const {
  if (impl_->reaped) return std::nullopt;
  return impl_->ended();
}

void Process::hold_output(bool hold) {
  impl_->held = hold;
  if (hold) return;
  impl_->read(shared_from_this(), 0);
  impl_->read(shared_from_this(), 1);
}

void Process::abandon() {
  impl_->told_gone = true;
  impl_->timer.cancel();
  if (!impl_->reaped) impl_->reap();
  for (Impl::Stream& stream : impl_->streams) {
    if (stream.open) Impl::close(stream);
  }
}

}  // namespace hvd::launch

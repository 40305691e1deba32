// Spawns a process and watches its pipes and its end.
#include "launch/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <asio.hpp>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/descriptor.h"
#include "base/status.h"
#include "launch/guard.h"
#include "launch/keeper.h"
#include "launch/process_handle.h"

namespace hvd::launch {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(20);
constexpr int kReapAttempts =
    5000;  // of a millisecond: one in the kernel's uninterruptible sleep is left behind
constexpr Duration kDrainTime = std::chrono::seconds(2);

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

int32_t status_of(const siginfo_t& info) {
  return info.si_code == CLD_EXITED ? info.si_status & 0xff : 256 + info.si_status;
}

}  // namespace

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
        timer(l),
        deadline(l) {}

  Loop& loop;
  asio::io_context& io;
  Handlers handlers;
  ~Impl() {
    if (watch.is_open()) watch.release();  // the handle's
  }

  std::string path, directory;
  pid_t pid = -1;
  ProcessHandle handle;
  std::shared_ptr<Guard> guard;
  Descriptor gate;  // of a child that was held
  std::shared_ptr<Keeper> keeper;
  std::string kept_as;
  bool inherited = false;                // no child of this process
  std::optional<int32_t> inherited_end;  // its exit status
  bool reaped = false;
  bool held = false;
  bool told_gone = false;
  asio::posix::stream_descriptor watch;  // the handle's descriptor
  std::array<Stream, 2> streams;
  Loop::Timer timer;     // polls for the end; later bounds the draining
  Loop::Timer deadline;  // of stop

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

  int wait_for(siginfo_t* info, int flags) const {
    constexpr auto kByDescriptor = static_cast<idtype_t>(3);  // P_PIDFD, which older headers lack
    if (handle.descriptor() >= 0) {
      const auto fd = static_cast<id_t>(handle.descriptor());
      const int result = ::waitid(kByDescriptor, fd, info, WEXITED | WNOHANG | flags);
      if (result == 0 || errno != EINVAL) return result;  // since Linux 5.4
    }
    return ::waitid(P_PID, static_cast<id_t>(pid), info, WEXITED | WNOHANG | flags);
  }

  std::optional<int32_t> ended() const {
    if (inherited && (inherited_end || handle.pid() <= 0 || handle.signal(0) || errno != ESRCH))
      return inherited_end;
    if (inherited) return -1;  // whose child it is has not told yet
    siginfo_t info{};
    int result = 0;
    do { result = wait_for(&info, WNOWAIT); } while (result != 0 && errno == EINTR);
    if (result != 0) return -1;  // ECHILD: somebody else reaped it, or SIGCHLD is ignored
    if (info.si_pid == 0) return std::nullopt;
    return status_of(info);
  }

  void reap() {
    // Alive or a zombie, the leader is still there, so that its number can't be anybody else's group.
    if (inherited ? !ended() : ended() != -1) handle.signal_group(SIGKILL);
    if (guard) guard->remove(pid);
    if (keeper) {
      keeper->drop(kept_as);
      keeper->expect_no_more(kept_as);
    }
    if (handlers.reaping) handlers.reaping();
    if (inherited) {
      reaped = true;
      if (watch.is_open()) watch.release();
      handle = ProcessHandle();
      return;
    }
    siginfo_t info{};
    for (int i = 0; i < kReapAttempts; ++i) {
      const int result = wait_for(&info, 0);
      if ((result == 0 && info.si_pid == pid) || (result != 0 && errno != EINTR)) break;
      ::usleep(1000);
    }
    reaped = true;
    if (watch.is_open()) watch.release();
    handle = ProcessHandle();
  }

  void check(const std::shared_ptr<Process>& self) {
    if (reaped) return;
    const std::optional<int32_t> status = ended();
    if (!status) {
      wait(self);
      return;
    }
    const int error = gate.get() >= 0 ? start_error(gate.get()) : 0;
    gate = Descriptor();
    reap();
    if (error != 0 && handlers.failed) return fail(error);
    timer.start(kDrainTime, [weak = self->weak_from_this()] {
      if (auto process = weak.lock()) process->impl_->give_up_draining();
    });
    handlers.exited(*status);
    maybe_gone();
  }

  void fail(int error) {
    told_gone = true;
    for (Stream& stream : streams) {
      if (stream.open) close(stream);
    }
    handlers.failed(error < 0
                        ? fmt::format("directory {} can't be entered: {}", directory, std::strerror(-error))
                        : fmt::format("{} can't be started: {}", path, std::strerror(error)));
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

std::shared_ptr<Process> Process::start(Loop& loop, SpawnSpec spec, Handlers handlers, Options options) {
  std::shared_ptr<Process> process(new Process(std::make_unique<Impl>(loop, std::move(handlers))));
  Impl& impl = *process->impl_;
  impl.path = spec.path;
  impl.directory = spec.directory;
  {
    Pipe out;
    Pipe err;
    spec.out = out.write.get();
    spec.err = err.write.get();
    if (options.guard) {
      const HeldChild held = spawn_held(spec, options.guard->path());
      impl.pid = held.pid;
      impl.gate = Descriptor(held.gate);
    } else {
      impl.pid = spawn(spec);
    }
    impl.handle = ProcessHandle(impl.pid, options.poll_exit);
    try {
      for (auto& [stream, pipe] : {std::pair{&impl.streams[0], &out}, std::pair{&impl.streams[1], &err}}) {
        stream->descriptor.assign(pipe->read.get());
        pipe->read.release();
      }
      if (impl.handle.descriptor() >= 0) impl.watch.assign(impl.handle.descriptor());
    } catch (const std::exception& error) {
      process->abandon();
      throw Error(HVD_UNAVAILABLE, fmt::format("{} can't be watched: {}", spec.path, error.what()));
    }
  }
  if (options.guard) {
    impl.guard = std::move(options.guard);
    impl.guard->run_on(loop);
    const auto known = [weak = process->weak_from_this()] {
      if (const auto held = weak.lock()) let_go(held->impl_->gate.get());
    };
    options.helper ? impl.guard->add_helper(impl.pid, known) : impl.guard->add(impl.pid, known);
  }
  impl.read(process, 0);
  impl.read(process, 1);
  impl.wait(process);
  if (options.keeper) process->keep(std::move(options.keeper), options.kept_as, options.kept_text);
  return process;
}

std::shared_ptr<Process> Process::inherit(Loop& loop, const Inherited& inherited, Handlers handlers,
                                          Options options) {
  std::shared_ptr<Process> process(new Process(std::make_unique<Impl>(loop, std::move(handlers))));
  Impl& impl = *process->impl_;
  impl.path = fmt::format("process {}", inherited.pid);
  impl.pid = inherited.pid;
  impl.inherited = true;
  impl.guard = std::move(options.guard);
  if (impl.guard) impl.guard->run_on(loop);
  impl.keeper = std::move(options.keeper);
  impl.kept_as = options.kept_as;
  asio::error_code error;
  impl.streams[0].descriptor.assign(inherited.out, error);
  if (!error) impl.streams[1].descriptor.assign(inherited.err, error);
  if (error)
    throw Error(HVD_UNAVAILABLE,
                fmt::format("process {} can't be taken over: {}", inherited.pid, error.message()));
  if (inherited.exit_status) {
    loop.post([process, status = *inherited.exit_status] { process->inherited_exited(status); });
  } else {
    impl.handle = ProcessHandle(impl.pid);
    impl.keeper->expect(impl.kept_as, [weak = process->weak_from_this()](int32_t status) {
      if (const auto p = weak.lock()) p->inherited_exited(status);
    });
  }
  impl.read(process, 0);
  impl.read(process, 1);
  return process;
}

void Process::keep(std::shared_ptr<Keeper> keeper, const std::string& name, const std::string& text) {
  impl_->keeper = std::move(keeper);
  impl_->kept_as = name;
  impl_->keeper->keep(
      name, fmt::format("{} {}", impl_->pid, text),
      {impl_->streams[0].descriptor.native_handle(), impl_->streams[1].descriptor.native_handle()});
}

void Process::inherited_exited(int32_t exit_status) {
  if (impl_->reaped || !impl_->inherited || impl_->inherited_end) return;
  impl_->inherited_end = exit_status;
  impl_->check(shared_from_this());
}

Process::~Process() = default;

pid_t Process::pid() const { return impl_->pid; }
bool Process::running() const { return !impl_->reaped; }

void Process::signal_group(int signal) {
  if (!impl_->reaped) impl_->handle.signal_group(signal);
}

void Process::stop(Duration grace, std::function<void()> late) {
  if (grace <= Duration(0)) return signal_group(SIGKILL);
  signal_group(SIGTERM);
  impl_->deadline.start(grace, [weak = weak_from_this(), late = std::move(late)] {
    const auto process = weak.lock();
    if (!process || !process->running()) return;
    late();
    process->signal_group(SIGKILL);
  });
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
  impl_->deadline.cancel();
  if (!impl_->reaped) impl_->reap();
  for (Impl::Stream& stream : impl_->streams) {
    if (stream.open) Impl::close(stream);
  }
}

}  // namespace hvd::launch

// The keeper: one thread, no library but the standard one, so that it hardly can fail.
#include "cli/keep.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor_store.h"
#include "base/signal_name.h"

namespace hvd::cli {
namespace {

constexpr size_t kMostDeaths = 5;            // of drivers
constexpr std::chrono::seconds kWithin{60};  // so many in this time are too many
constexpr int kForwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

int wake_pipe = -1;
void on_signal(int number) {
  const int kept = errno;
  const auto byte = static_cast<unsigned char>(number);
  [[maybe_unused]] const ssize_t n = ::write(wake_pipe, &byte, 1);
  errno = kept;
}

class Keeper {
 public:
  /// In the driver's process: -1, and its end of the socket.
  int run(int* ret_driver_end) {
    if (!prepare()) return -1;
    while (true) {
      if (!start()) return 1;
      if (driver_end_ >= 0) {
        *ret_driver_end = driver_end_;
        return -1;
      }
      const std::string death = watch();
      if (over_) return *over_;
      if (!may_start_again(death)) return 1;
    }
  }

 private:
  struct Kept {
    std::string text;
    std::vector<int> descriptors;
    std::optional<int> exited;
  };

  static void say(const std::string& text) {
    const std::string line = "hvdrun: " + text + "\n";
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
  }

  bool prepare() {
    int fds[2];
    // Workers whose driver dies become children of this process: nobody else could tell how they end.
    if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 || ::pipe2(fds, O_CLOEXEC | O_NONBLOCK) != 0) return false;
    wakes_ = fds[0];
    wake_pipe = fds[1];
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGCHLD, &action, nullptr);
    for (const int number : kForwarded) {
      struct sigaction before {};
      ::sigaction(number, nullptr, &before);
      if (before.sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr);  // as under nohup
    }
    std::signal(SIGPIPE, SIG_IGN);
    return true;
  }

  bool start() {
    int sockets[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
      say(std::string("job failed: no socket for the driver: ") + std::strerror(errno));
      return false;
    }
    const pid_t self = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) {
      say(std::string("job failed: the driver can't be started: ") + std::strerror(errno));
      return false;
    }
    if (pid == 0) {
      ::setpgid(0, 0);  // the terminal's signals come to the keeper, which passes them on
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != self) std::_Exit(1);
      for (const int number : kForwarded) {
        struct sigaction now {};
        ::sigaction(number, nullptr, &now);
        if (now.sa_handler == on_signal) std::signal(number, SIG_DFL);
      }
      std::signal(SIGTTOU,
                  SIG_IGN);  // it is no part of the terminal's foreground, and says what it has to say
      std::signal(SIGCHLD, SIG_DFL);
      std::signal(SIGPIPE, SIG_DFL);
      for (const auto& [name, kept] : kept_) {
        for (const int fd : kept.descriptors) ::close(fd);
      }
      for (const int fd : {sockets[0], wakes_, wake_pipe}) ::close(fd);
      driver_end_ = sockets[1];
      return true;
    }
    ::close(sockets[1]);
    socket_ = sockets[0];
    driver_ = driver_was_ = pid;
    for (const auto& [name, kept] : kept_) {
      store::send(socket_, {store::Kind::kKeep, name, kept.text, kept.descriptors});
      if (kept.exited) store::send(socket_, {store::Kind::kExited, name, std::to_string(*kept.exited), {}});
    }
    store::send(socket_, {store::Kind::kBegin, "", std::to_string(drivers_++), {}});
    return true;
  }

  /// Until the driver has ended: how.
  std::string watch() {
    while (true) {
      pollfd fds[2] = {{wakes_, POLLIN, 0}, {socket_, POLLIN, 0}};
      if (::poll(fds, socket_ >= 0 ? 2 : 1, -1) < 0 && errno != EINTR) return std::strerror(errno);
      read_store();
      unsigned char number = 0;
      while (::read(wakes_, &number, 1) == 1) {
        if (number != SIGCHLD && driver_ > 0) ::kill(driver_, number);
      }
      if (std::optional<std::string> death = reap()) {
        read_store();  // what it said last
        ::close(socket_);
        socket_ = driver_ = -1;
        return *death;
      }
    }
  }

  void read_store() {
    while (socket_ >= 0) {
      std::optional<store::Message> m = store::receive(socket_, true);
      if (!m) return;
      if (m->kind == store::Kind::kOver) over_ = std::atoi(m->text.c_str());
      if (m->kind == store::Kind::kDrop || m->kind == store::Kind::kKeep) drop(m->name);
      if (m->kind == store::Kind::kKeep) kept_[m->name] = {m->text, m->descriptors, {}};
    }
  }

  void drop(const std::string& name) {
    const auto found = kept_.find(name);
    if (found == kept_.end()) return;
    for (const int fd : found->second.descriptors) ::close(fd);
    kept_.erase(found);
  }

  /// Reaps every child that has ended; returns the driver's status if it is among them.
  std::optional<std::string> reap() {
    std::optional<std::string> death;
    while (true) {
      siginfo_t info{};
      if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return death;
      const pid_t pid = info.si_pid;
      const bool by_itself = info.si_code == CLD_EXITED;
      const auto kept = of_process(pid);
      // Kills the rest of its group before the number can be given to another process.
      if (kept != kept_.end()) ::kill(-pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
      if (pid == driver_) {
        death = by_itself ? "exited with status " + std::to_string(info.si_status)
                          : "was killed by " + signal_text(info.si_status);
      } else if (kept != kept_.end()) {
        kept->second.exited = by_itself ? info.si_status & 0xff : 256 + info.si_status;
        if (socket_ >= 0)
          store::send(socket_, {store::Kind::kExited, kept->first, std::to_string(*kept->second.exited), {}});
      }
    }
  }

  /// The text of a process that is kept begins with its number.
  std::map<std::string, Kept>::iterator of_process(pid_t pid) {
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->second.descriptors.size() == 2 && std::atoi(it->second.text.c_str()) == pid) return it;
    }
    return kept_.end();
  }

  bool may_start_again(const std::string& death) {
    const auto at = std::chrono::steady_clock::now();
    deaths_.push_back(at);
    while (deaths_.front() + kWithin < at) deaths_.pop_front();
    if (kept_.find("job") == kept_.end()) {
      say("job failed: the driver " + death + ", and has left nothing from which another could go on");
      return false;
    }
    if (deaths_.size() >= kMostDeaths) {
      say("job failed: " + std::to_string(deaths_.size()) + " drivers in a row died; the last one " + death);
      return false;  // hvd-guard ends the workers
    }
    say("the driver (process " + std::to_string(driver_was_) + ") " + death +
        ": the job goes on, and a new driver takes over");
    return true;
  }

  int wakes_ = -1, socket_ = -1, driver_end_ = -1;
  pid_t driver_ = -1, driver_was_ = -1;
  int drivers_ = 0;
  std::map<std::string, Kept> kept_;
  std::deque<std::chrono::steady_clock::time_point> deaths_;
  std::optional<int> over_;
};

}  // namespace

void tell_over(int keeper, int status) {
  if (keeper >= 0) store::send(keeper, {store::Kind::kOver, "", std::to_string(status), {}});
}

int keep_driver(int* ret_keeper) { return Keeper().run(ret_keeper); }

}  // namespace hvd::cli

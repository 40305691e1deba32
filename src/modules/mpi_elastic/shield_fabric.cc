// What libfabric's provider tcp (versions 1.18 to 2.6) does, as far as it matters here: a socket and a
// connection a peer, made as there is something to send. The caller sends a request, a header of 32 bytes and
// some bytes of data whose number is in it, and the peer answers with one that differs in the type. Until
// then fi_tsend says "try again", which MPICH does for ever, under its lock. So a connection to the dead has
// to be answered: the answer is made here of the request, and from then on nothing comes and everything goes.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "modules/mpi_elastic/calls.h"
#include "modules/mpi_elastic/shield.h"
#include "modules/mpi_elastic/silence.h"

namespace hvdmpi {
namespace {

constexpr size_t kType = 1;  // its place in the header: libfabric's enum of control messages
constexpr char kAnswer = 1;
constexpr size_t kLongest = 1024;  // of a request

bool lost(int error) {
  for (const int one :
       {EPIPE, ECONNRESET, ECONNABORTED, ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, ENETDOWN,
        EHOSTDOWN, ENOTSOCK, ENOTCONN}) {  // the last but one: it was silenced before
    if (error == one) return true;
  }
  return false;
}

// Connections that this process is making: what was asked, until something is heard.
struct Making {
  std::string request;
  size_t answered = 0;  // bytes of it that were given back as the answer of somebody dead
  bool dead = false;
};

class Connections {
 public:
  static Connections& get() {
    static auto* const connections = new Connections;
    return *connections;
  }

  void begin(int fd) {
    std::lock_guard<std::mutex> lock(mutex_);
    making_[fd] = {};
    count_ = static_cast<int>(making_.size());
  }
  void end(int fd) {
    if (count_ == 0) return;
    std::lock_guard<std::mutex> lock(mutex_);
    making_.erase(fd);
    count_ = static_cast<int>(making_.size());
  }

  // Runs `what` on the connection if it is being made.
  template <class What>
  bool with(int fd, What what) {
    if (count_ == 0) return false;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = making_.find(fd);
    if (found == making_.end()) return false;
    what(found->second);
    return true;
  }

 private:
  std::atomic<int> count_{0};  // most calls come when there are none
  std::mutex mutex_;
  std::map<int, Making> making_;
};

Connections& connections() { return Connections::get(); }

// There is nobody to connect to. In its place comes a connection that can be written, as far as polling goes,
// and read, since its other end is closed.
void bury(int fd) {
  int ends[2] = {};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) return silence(fd);
  close(ends[1]);
  dup3(ends[0], fd, O_CLOEXEC);
  close(ends[0]);
  connections().with(fd, [](Making& making) { making.dead = true; });
}

size_t size_of(const msghdr& message) {
  size_t size = 0;
  for (size_t i = 0; i < message.msg_iovlen; ++i) size += message.msg_iov[i].iov_len;
  return size;
}

// A request is sent at once, from one place.
void note(int fd, const void* data, size_t size) {
  connections().with(fd, [&](Making& making) {
    if (making.request.empty() && size > kType && size <= kLongest)
      making.request.assign(static_cast<const char*>(data), size);
  });
}

ssize_t after_send(int fd, ssize_t size, size_t wanted) {
  if (size >= 0 || !lost(errno)) return size;
  if (!connections().with(fd, [](Making& making) { making.dead = true; })) silence(fd);
  return static_cast<ssize_t>(wanted);
}

ssize_t shielded_send(int fd, const void* data, size_t size, int flags) {
  note(fd, data, size);
  return after_send(fd, send(fd, data, size, flags | MSG_NOSIGNAL), size);
}

ssize_t shielded_sendmsg(int fd, const msghdr* message, int flags) {
  if (message->msg_iovlen == 1) note(fd, message->msg_iov[0].iov_base, message->msg_iov[0].iov_len);
  return after_send(fd, sendmsg(fd, message, flags | MSG_NOSIGNAL), size_of(*message));
}

// `size` is what the call gave; what the program gets instead, if that was a loss.
ssize_t after_recv(int fd, ssize_t size, const iovec* parts, size_t count) {
  if (size > 0) {
    connections().end(fd);  // it is made
    return size;
  }
  if (size < 0 && !lost(errno)) return size;
  size_t given = 0;
  bool all = true;
  const bool making = connections().with(fd, [&](Making& it) {
    std::string answer = it.request;
    if (!answer.empty()) answer[kType] = kAnswer;
    for (size_t i = 0; i < count && it.answered < answer.size(); ++i) {
      const size_t part = std::min(parts[i].iov_len, answer.size() - it.answered);
      std::memcpy(parts[i].iov_base, answer.data() + it.answered, part);
      it.answered += part;
      given += part;
    }
    all = it.answered == answer.size();
  });
  if (all) {
    if (making) connections().end(fd);
    silence(fd);
  }
  if (given > 0) return static_cast<ssize_t>(given);
  errno = EAGAIN;
  return -1;
}

ssize_t shielded_recv(int fd, void* data, size_t size, int flags) {
  const iovec part{data, size};
  return size == 0 ? recv(fd, data, size, flags) : after_recv(fd, recv(fd, data, size, flags), &part, 1);
}

ssize_t shielded_recvmsg(int fd, msghdr* message, int flags) {
  const ssize_t size = recvmsg(fd, message, flags);
  if ((flags & MSG_ERRQUEUE) != 0) {
    if (size < 0 && lost(errno)) errno = EAGAIN;
    return size;
  }
  return after_recv(fd, size, message->msg_iov, message->msg_iovlen);
}

int shielded_connect(int fd, const sockaddr* address, socklen_t size) {
  connections().begin(fd);
  const int status = connect(fd, address, size);
  if (status == 0 || !lost(errno)) return status;
  bury(fd);
  errno = EINPROGRESS;
  return -1;
}

int shielded_getsockopt(int fd, int level, int name, void* value, socklen_t* size) {
  const int status = getsockopt(fd, level, name, value, size);
  if (status != 0 || level != SOL_SOCKET || name != SO_ERROR || *size != sizeof(int)) return status;
  int error = 0;
  std::memcpy(&error, value, sizeof(error));
  if (!lost(error)) return status;
  if (connections().with(fd, [](const Making&) {})) {
    bury(fd);
  } else {
    silence(fd);
  }
  std::memset(value, 0, sizeof(error));
  return status;
}

// Of TCP's options what is there in its place has none.
int shielded_setsockopt(int fd, int level, int name, const void* value, socklen_t size) {
  const int status = setsockopt(fd, level, name, value, size);
  if (status == 0) return status;
  const int error = errno;
  bool dead = error == ENOTSOCK;
  connections().with(fd, [&](const Making& making) { dead = dead || making.dead; });
  errno = error;
  return dead ? 0 : status;
}

// What came in the place of a connection is not in the set that is polled any more.
int shielded_epoll_ctl(int set, int operation, int fd, epoll_event* event) {
  const int status = epoll_ctl(set, operation, fd, event);
  if (status == 0 || operation != EPOLL_CTL_MOD || errno != ENOENT) return status;
  bool waits = false;  // for its answer
  connections().with(fd, [&](const Making& making) { waits = making.dead; });
  if (waits) return epoll_ctl(set, EPOLL_CTL_ADD, fd, event);
  int type = 0;
  socklen_t size = sizeof(type);
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 && errno == ENOTSOCK) return 0;  // nothing comes
  errno = ENOENT;
  return status;
}

int shielded_close(int fd) {
  connections().end(fd);
  return close(fd);
}

}  // namespace

bool shield_fabric() {
  if (!prepare_silence()) return false;
  return replace_calls("libfabric.so", {
                                           {"send", address_of(&shielded_send)},
                                           {"sendmsg", address_of(&shielded_sendmsg)},
                                           {"recv", address_of(&shielded_recv)},
                                           {"recvmsg", address_of(&shielded_recvmsg)},
                                           {"connect", address_of(&shielded_connect)},
                                           {"getsockopt", address_of(&shielded_getsockopt)},
                                           {"setsockopt", address_of(&shielded_setsockopt)},
                                           {"epoll_ctl", address_of(&shielded_epoll_ctl)},
                                           {"close", address_of(&shielded_close)},
                                       });
}

}  // namespace hvdmpi

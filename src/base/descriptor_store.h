// Descriptors and texts, by name, that a driver gives to its keeper and the keeper to the next driver, over a
// socket of type SOCK_SEQPACKET. Needs the standard library alone.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace hvd::store {

enum class Kind : uint8_t {
  kKeep = 1,    // both ways: `text` and descriptors under `name`, in place of what was kept there
  kDrop = 2,    // driver: closes what is kept under `name`
  kOver = 3,    // driver: the job is over, `text` is its exit status
  kBegin = 4,   // keeper: all that was kept has been said; `text` counts the drivers that were started
  kExited = 5,  // keeper: the process that `name` stands for has ended; `text`: its status
};

struct Message {
  Kind kind = Kind::kKeep;
  std::string name, text;
  std::vector<int> descriptors;  // the receiver's to close
};

inline constexpr size_t kMost = size_t{64} << 10;
inline constexpr size_t kMostDescriptors = 4;

/// Waits for room, even if another owner of the socket has set O_NONBLOCK; with `dont_wait` EAGAIN. False,
/// and errno.
inline bool send(int socket, const Message& message, bool dont_wait = false) {
  std::string bytes(1, static_cast<char>(message.kind));
  bytes += message.name;
  bytes.push_back(0);
  bytes += message.text;
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!message.descriptors.empty()) {
    const size_t size = message.descriptors.size() * sizeof(int);
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(size);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(rights), message.descriptors.data(), size);
  }
  ssize_t n = -1;
  while ((n = ::sendmsg(socket, &header, MSG_NOSIGNAL | (dont_wait ? MSG_DONTWAIT : 0))) < 0) {
    if (errno == EINTR) continue;
    if ((errno != EAGAIN && errno != EWOULDBLOCK) || dont_wait) break;
    pollfd room{socket, POLLOUT, 0};
    ::poll(&room, 1, -1);
  }
  return n == static_cast<ssize_t>(bytes.size());
}

/// Nothing: the other end is gone (errno 0), or an error; with `dont_wait` also EAGAIN.
inline std::optional<Message> receive(int socket, bool dont_wait) {
  std::string bytes(kMost, 0);
  iovec part{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t n = 0;
  do {
    n = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC | (dont_wait ? MSG_DONTWAIT : 0));
  } while (n < 0 && errno == EINTR);
  if (n <= 0) {
    if (n == 0) errno = 0;
    return std::nullopt;
  }
  Message message;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    message.descriptors.resize((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(message.descriptors.data(), CMSG_DATA(c), message.descriptors.size() * sizeof(int));
  }
  message.kind = static_cast<Kind>(bytes[0]);
  const size_t end = bytes.find('\0', 1);
  message.name = bytes.substr(1, end - 1);
  if (end < static_cast<size_t>(n)) message.text = bytes.substr(end + 1, static_cast<size_t>(n) - end - 1);
  return message;
}

}  // namespace hvd::store

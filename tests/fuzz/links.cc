// Fuzzes the links between ranks by real connections: strangers of every kind, and a member that sends what
// it likes.
#include "modules/kit/links.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <future>

#include "fuzz.h"

namespace hvd::fuzz {
namespace {

using namespace hvdkit;
constexpr std::chrono::seconds kLong{20};

Fd connected_to(const Blob& blob) {
  socklen_t length = 0;
  const sockaddr_storage address = blob.sockaddr_of(&length);
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  HVD_PROMISE(fd.get() >= 0);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) fd.reset();
  return fd;
}

void say(const Fd& fd, const void* data, size_t size) {
  if (fd.get() >= 0) (void)!::send(fd.get(), data, size, MSG_NOSIGNAL);
}

/// Reads until the other end has closed, or for a while.
void hear(const Fd& fd) {
  char buffer[4096];
  for (int turns = 0; turns < 50; ++turns) {
    pollfd poller{fd.get(), POLLIN, 0};
    if (TEMP_FAILURE_RETRY(poll(&poller, 1, 1000)) <= 0) return;
    if (TEMP_FAILURE_RETRY(recv(fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT)) <= 0) return;
  }
}

/// Greets as rank 1 and leaves the connection as its link. False: refused. libFuzzer's alarm must not end it:
/// what has greeted may not greet again.
bool greet(const Fd& fd, const LinkGroup& group) {
  Handshake handshake(group, 0, 0, {});
  Bytes out = handshake.hello();
  say(fd, out.data(), out.size());
  while (!handshake.done()) {
    Bytes in(handshake.wants());
    pollfd poller{fd.get(), POLLIN, 0};
    if (TEMP_FAILURE_RETRY(poll(&poller, 1, 10000)) <= 0) return false;
    const ssize_t got = TEMP_FAILURE_RETRY(recv(fd.get(), in.data(), in.size(), 0));
    out.clear();
    if (got <= 0 || !handshake.take(in.data(), static_cast<size_t>(got), &out)) return false;
    say(fd, out.data(), out.size());
  }
  return true;
}

/// As a peer does, that is closed where it was too slow to greet: again, until it is too late.
Fd greeted_by(const Blob& blob, const LinkGroup& group) {
  for (const auto deadline = Clock::now() + kLong; Clock::now() < deadline;) {
    Fd fd = connected_to(blob);
    if (fd.get() >= 0 && greet(fd, group)) return fd;
  }
  return Fd();
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions decisions(data);
  std::atomic<size_t> bytes{0};
  std::promise<void> failed;
  std::atomic<bool> told{false};
  Links links("127.0.0.1", LinkHooks{[&](int source, const void* message, size_t size) {
                                       HVD_PROMISE(source == 1 && size <= kMaxMessage);
                                       volatile uint8_t last =
                                           size > 0 ? static_cast<const uint8_t*>(message)[size - 1] : 0;
                                       bytes += size + last * 0;
                                     },
                                     [&](int peer, const std::string& text) {
                                       HVD_PROMISE(peer >= -1 && peer < 2 && !text.empty());
                                       if (!told.exchange(true)) failed.set_value();
                                     },
                                     [](const std::string& text) { HVD_PROMISE(!text.empty()); }});
  LinkGroup group{7, 0, {links.blob(), Blob{}}};
  group.members[1].token.fill(9);
  auto greeted = std::async(std::launch::async, [&] {
    try {
      links.greet(group, {{}, {1, 2, 3}}, Clock::now() + kLong);
      return true;
    } catch (const Failure&) { return false; }
  });
  for (uint32_t strangers = decisions.upto(3); strangers > 0; --strangers) {
    const Fd stranger = connected_to(links.blob());
    if (stranger.get() < 0) continue;
    const auto words = decisions.some(200);
    say(stranger, words.data(), words.size());
    if (decisions.coin()) {  // RST
      const linger hard{1, 0};
      setsockopt(stranger.get(), SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    } else {
      shutdown(stranger.get(), SHUT_WR);
      hear(stranger);
    }
  }
  LinkGroup theirs = group;
  theirs.rank = 1;
  const Fd member = greeted_by(links.blob(), theirs);
  HVD_PROMISE(member.get() >= 0);  // strangers disturb nobody
  HVD_PROMISE(greeted.get());
  const bool open_first = decisions.coin();
  try {
    if (open_first) links.open();
    while (!decisions.over()) {
      if (decisions.coin()) {  // a frame whose head makes sense
        const auto body = decisions.some(100);
        const FrameHeader header{static_cast<uint32_t>(body.size()),
                                 static_cast<Frame>(2 + decisions.upto(3))};
        say(member, &header, sizeof(header));
        say(member, body.data(), body.size());
      } else {
        const auto words = decisions.some(60);
        say(member, words.data(), words.size());
      }
    }
    if (!open_first) links.open();
  } catch (const Failure& failure) { HVD_PROMISE(failure.status == HVD_PEER_LOST); }
  shutdown(member.get(), SHUT_WR);
  links.abort();
  links.stop();
}

std::vector<Bytes> seeds() {
  return {{0, 1, 1, 5, 'h', 'e', 'l', 'l', 'o', 1},
          {3, 20, 1,  0,  0, 0, 2,   0,   0,   0,   1, 2, 3,   4,   5,   6, 7, 8,
           9, 10, 11, 12, 1, 4, 'a', 'b', 'c', 'd', 0, 3, 'G', 'E', 'T', 1, 0},
          {0, 0, 1, 0, 0, 1, 0, 2, 1, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1},
          {0, 1, 0, 8, 255, 255, 255, 255, 3, 0, 0, 0}};
}

}  // namespace hvd::fuzz

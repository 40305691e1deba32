// The links' thread: accepts, greets, reads frames, writes what was left over.
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <cerrno>

#include "modules/kit/links.h"

namespace hvdkit {
namespace {

constexpr size_t kReadSize = size_t{256} << 10;
constexpr int kReadsPerTurn = 8;       // then the other links have their turn
constexpr size_t kMaxStrangers = 256;  // connections that have not greeted yet

}  // namespace

void Links::run() {
  reader_ = std::this_thread::get_id();
  scratch_.resize(kReadSize);
  epoll_event events[64];
  bool delivering = false;
  for (;;) {
    const int count = epoll_wait(epoll_.get(), events, 64, -1);
    if (count < 0 && errno != EINTR) return lost(nullptr, std::string("epoll_wait: ") + std::strerror(errno));
    bool woken = false;
    for (int i = 0; i < count; ++i) {
      void* const what = events[i].data.ptr;
      if (what == &wake_) {
        woken = true;
        continue;
      }
      if (what == &listener_) {
        accept_all();
        continue;
      }
      ConnectionPtr found;  // none if an earlier event of this turn ended it
      for (const ConnectionPtr& c : connections_) {
        if (c.get() == what) found = c;
      }
      if (found != nullptr) handle(found, events[i].events);
    }
    if (!woken) continue;
    uint64_t ignored = 0;
    (void)!::read(wake_.get(), &ignored, sizeof(ignored));
    bool open = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      open = open_;
    }
    if (open && !delivering) {
      delivering = true;
      const std::vector<ConnectionPtr> all = connections_;
      for (const ConnectionPtr& c : all) {
        if (c->greeted && !take_frames(c)) lost(c, "sent a frame that makes no sense");
      }
    }
  }
}

void Links::accept_all() {
  for (;;) {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() < 0) return;
    size_t strangers = 0;
    for (const ConnectionPtr& c : connections_) strangers += c->peer < 0 ? 1 : 0;
    if (strangers >= kMaxStrangers) continue;
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    auto connection = std::make_shared<Connection>();
    connection->fd = std::move(fd);
    watch(connection->fd.get(), connection.get(), EPOLLIN, EPOLL_CTL_ADD);
    connections_.push_back(std::move(connection));
  }
}

void Links::handle(const ConnectionPtr& connection, uint32_t events) {
  if (connection->connecting) {
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(connection->fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return lost(connection, std::string("can't be reached: ") + std::strerror(error));
    connection->connecting = false;
    watch(connection->fd.get(), connection.get(), EPOLLIN, EPOLL_CTL_MOD);
    return send_hello(*connection);
  }
  if ((events & EPOLLOUT) != 0) flush(connection);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) read(connection);
}

void Links::send_hello(Connection& connection) {
  const auto peer = static_cast<size_t>(connection.peer);
  const Greeting& greeting = mine_[peer];
  Hello hello;
  std::vector<uint8_t> body(sizeof(hello) + greeting.size());
  std::memset(&hello, 0, sizeof(hello));
  hello.magic = kHelloMagic;
  hello.version = kHelloVersion;
  hello.generation = group_.generation;
  hello.rank = group_.rank;
  hello.size = static_cast<int32_t>(group_.members.size());
  hello.token = group_.members[peer].token;
  std::memcpy(body.data(), &hello, sizeof(hello));
  std::copy(greeting.begin(), greeting.end(), body.begin() + sizeof(hello));
  try {
    write_frame(connection, Kind::kHello, body.data(), body.size());
  } catch (const Failure&) {
    // The read that follows sees the same end.
  }
}

void Links::read(const ConnectionPtr& connection) {
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    std::vector<uint8_t>& in = connection->in;
    // No more of a stranger than a hello.
    constexpr size_t kHello = sizeof(Header) + sizeof(Hello) + kMaxGreeting;
    const size_t room = connection->greeted ? kReadSize : kHello - std::min(in.size(), kHello - 1);
    const ssize_t got = ::recv(connection->fd.get(), scratch_.data(), room, MSG_DONTWAIT);
    const int error = errno;
    if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK)) return;
    if (got < 0 && error == EINTR) continue;
    if (got < 0) return lost(connection, std::string("link broke: ") + std::strerror(error));
    if (got == 0) return lost(connection, "closed its link: its process is gone");
    in.insert(in.end(), scratch_.begin(), scratch_.begin() + got);
    if (!take_frames(connection)) return lost(connection, "sent a frame that makes no sense");
    if (connection->dead || static_cast<size_t>(got) < room) return;
  }
}

// False if the bytes make no sense. Frames that come before the generation is open wait.
bool Links::take_frames(const ConnectionPtr& connection) {
  std::vector<uint8_t>& in = connection->in;
  size_t offset = 0;
  bool sense = true;
  while (sense && !connection->dead && in.size() - offset >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, in.data() + offset, sizeof(header));
    const bool hello = !connection->greeted;
    if (hello ? header.kind != Kind::kHello || header.size < sizeof(Hello) ||
                    header.size > sizeof(Hello) + kMaxGreeting
              : header.kind < Kind::kStep || header.kind > Kind::kGaveUp || header.size > kMaxMessage ||
                    (header.kind != Kind::kMessage && header.size != 0)) {
      sense = false;
      break;
    }
    if (in.size() - offset < sizeof(header) + header.size) break;
    const uint8_t* const body = in.data() + offset + sizeof(header);
    if (hello) {
      take_hello(connection, body, header.size);
      if (!connection->greeted) return true;  // refused
    } else if (header.kind == Kind::kMessage) {
      bool open = false;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        if (stopping_ || aborted_) break;
        open = open_;
      }
      if (!open) break;
      hooks_.message(connection->peer, body, header.size);
    } else {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto peer = static_cast<size_t>(connection->peer);
      if (header.kind == Kind::kStep) ++steps_[peer];
      if (header.kind == Kind::kBye) peers_[peer] = Peer::kLeft;
      if (header.kind == Kind::kGaveUp) peers_[peer] = Peer::kGaveUp;
      changed_.notify_all();
    }
    offset += sizeof(header) + header.size;
    if (header.kind == Kind::kGaveUp) {
      lost(connection, "gave the generation up");
      break;
    }
  }
  in.erase(in.begin(), in.begin() + static_cast<ptrdiff_t>(offset));
  return sense;
}

void Links::take_hello(const ConnectionPtr& connection, const uint8_t* data, size_t size) {
  Hello hello;
  std::memcpy(&hello, data, sizeof(hello));
  std::string wrong;
  if (hello.magic != kHelloMagic || hello.version != kHelloVersion) {
    wrong = "another protocol";
  } else if (!equal(hello.token, blob_.token)) {
    wrong = "a wrong token";
  } else if (hello.generation != group_.generation ||
             hello.size != static_cast<int32_t>(group_.members.size())) {
    wrong = "generation " + std::to_string(hello.generation) + " of " + std::to_string(hello.size) + " ranks";
  } else if (connection->outgoing ? hello.rank != connection->peer
                                  : hello.rank <= group_.rank || hello.rank >= hello.size) {
    wrong = "rank " + std::to_string(hello.rank);
  }
  bool last = false;
  if (wrong.empty()) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto peer = static_cast<size_t>(hello.rank);
    if (links_[peer] != nullptr) {
      wrong = "a rank that is there already, " + std::to_string(hello.rank);
    } else {
      connection->peer = hello.rank;
      connection->greeted = true;
      theirs_[peer].assign(data + sizeof(hello), data + size);
    }
  }
  if (!wrong.empty()) {
    if (connection->outgoing) return lost(connection, "greeted with " + wrong);
    hooks_.log("a connection that greeted with " + wrong + " was refused");  // contract 11
    return forget(connection);
  }
  if (!connection->outgoing) send_hello(*connection);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    links_[static_cast<size_t>(hello.rank)] = connection;
    last = ++greeted_ == static_cast<int>(group_.members.size()) - 1;
  }
  changed_.notify_all();
  if (last) {  // nobody else is to come
    watch(listener_.get(), nullptr, 0, EPOLL_CTL_DEL);
    listener_.reset();
    const std::vector<ConnectionPtr> all = connections_;
    for (const ConnectionPtr& c : all) {
      if (!c->greeted) forget(c);
    }
  }
}

void Links::flush(const ConnectionPtr& connection) {
  std::lock_guard<std::mutex> lock(connection->mutex);
  while (!connection->dead && !connection->out.empty()) {
    const std::vector<uint8_t>& first = connection->out.front();
    const ssize_t sent = ::send(connection->fd.get(), first.data() + connection->out_offset,
                                first.size() - connection->out_offset, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) return;  // EAGAIN: later; an error: the read sees it too
    connection->out_offset += static_cast<size_t>(sent);
    if (connection->out_offset < first.size()) return;
    connection->out.pop_front();
    connection->out_offset = 0;
  }
  if (!connection->dead) watch(connection->fd.get(), connection.get(), EPOLLIN, EPOLL_CTL_MOD);
}

void Links::forget(const ConnectionPtr& connection) {
  {
    std::lock_guard<std::mutex> lock(connection->mutex);
    connection->dead = true;
    watch(connection->fd.get(), nullptr, 0, EPOLL_CTL_DEL);
    if (!connection->greeted)
      connection->fd.reset();  // of a greeted one other threads may hold on to the number
  }
  for (size_t i = 0; i < connections_.size(); ++i) {
    if (connections_[i] != connection) continue;
    connections_.erase(connections_.begin() + static_cast<ptrdiff_t>(i));
    return;
  }
}

// Behind messages that came before the generation was open the peer may have said that it goes.
Links::Peer Links::last_word(const Connection& connection) {
  Peer word = Peer::kGone;
  Header header;
  for (size_t at = 0; connection.in.size() - at >= sizeof(header); at += sizeof(header) + header.size) {
    std::memcpy(&header, connection.in.data() + at, sizeof(header));
    if (header.kind == Kind::kBye) word = Peer::kLeft;
    if (header.kind == Kind::kGaveUp) word = Peer::kGaveUp;
    if (header.size > connection.in.size() - at - sizeof(header)) break;
  }
  return word;
}

void Links::lost(const ConnectionPtr& connection, const std::string& why) {
  if (connection != nullptr && connection->peer < 0) return forget(connection);  // a stranger
  const int peer = connection != nullptr ? connection->peer : -1;
  std::string text = peer >= 0 ? name_of(peer) + " " + why : why;
  bool report = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    Peer state = Peer::kGone;
    if (peer >= 0) {
      Peer& kept = peers_[static_cast<size_t>(peer)];
      if (kept == Peer::kThere) kept = last_word(*connection);
      state = kept;
    }
    if (state != Peer::kLeft && !aborted_ && !stopping_ && !failed_) {
      failed_ = true;
      failed_peer_ = state == Peer::kGaveUp ? -1 : peer;
      failed_text_ = text;
      report = open_;
    }
  }
  changed_.notify_all();
  const int blamed = failed_peer_;
  if (connection != nullptr) forget(connection);
  if (report) hooks_.failure(blamed, text);
}

}  // namespace hvdkit

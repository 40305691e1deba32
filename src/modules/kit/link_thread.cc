// The links' thread: dials, accepts, greets, reads frames, writes what was left over.
#include <netinet/tcp.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "modules/kit/links.h"

namespace hvdkit {
namespace {

constexpr size_t kReadSize = size_t{256} << 10;
constexpr int kReadsPerTurn = 8;     // then the other links have their turn
constexpr int kAcceptsPerTurn = 32;  // then those that were accepted may greet
// Of a peer that has greeted, before this rank opens the generation.
constexpr size_t kMostEarly = size_t{4} << 20;
// Connections that have not greeted yet, beyond those that are to come: a large job's all come at once.
constexpr size_t kMaxStrangers = 256;
constexpr std::chrono::milliseconds kToGreet{2000}, kToGreetOfEach{10};  // a large job's machine is busy
constexpr int kMostSteps = 1 << 20;  // that are told apart; a module has a few
constexpr std::chrono::milliseconds kRest{100};

void prepare(int fd) {
  const auto set = [fd](int level, int option, int value) {
    (void)setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  // For what lies between: firewalls forget connections on which nothing passes. Who is lost is known from
  // elsewhere.
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 60);
  set(IPPROTO_TCP, TCP_KEEPCNT, 10);
}

}  // namespace

void Links::run() {
  reader_ = std::this_thread::get_id();
  try {
    serve();
  } catch (const std::exception& error) { fail(error); }  // no memory, or OpenSSL can't
}

void Links::serve() {
  scratch_.reset(new uint8_t[kReadSize]);
  epoll_event events[64];
  bool delivering = false;
  looked_ = Clock::now();
  for (;;) {
    const int wait = unread_.empty() ? next_timer() : 0;
    const int count = epoll_wait(epoll_.get(), events, 64, wait);
    if (count < 0 && errno != EINTR) return lost(nullptr, std::string("epoll_wait: ") + std::strerror(errno));
    bool woken = false, strangers = false;
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      woken = woken || id == kWakeId;
      strangers = strangers || id == kListenerId;
      if (id < kFirstId) continue;
      ConnectionPtr found;  // none if an earlier event of this turn ended it
      if (const auto young = young_.find(id); young != young_.end()) found = young->second;
      if (const auto grown = grown_.find(id); grown != grown_.end()) found = grown->second;
      if (found == nullptr) continue;
      try {
        handle(found, events[i].events);
      } catch (const std::exception&) {
        if (found->peer >= 0) throw;
        forget(found);  // a stranger's alone; a peer dials again
      }
    }
    read_on();
    forgive(wait);
    run_timers();
    if (strangers)
      accept_all();  // last, so that whoever has sent its greeting is not one of those that give way
    if (!woken) continue;
    uint64_t ignored = 0;
    (void)!::read(wake_.get(), &ignored, sizeof(ignored));
    bool open = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      open = open_;
    }
    take_dials();
    take_deaf();
    if (open && !delivering) {
      delivering = true;
      const std::map<uint64_t, ConnectionPtr> all = grown_;
      for (const auto& [id, c] : all) {
        if (!take_frames(c)) lost(c, "sent a frame that makes no sense");
      }
    }
  }
}

// In their turn, like all others: a peer that floods this rank must not keep its thread.
void Links::read_on() {
  for (const uint64_t id : std::exchange(unread_, {})) {
    if (const auto found = grown_.find(id); found != grown_.end()) read(ConnectionPtr(found->second));
  }
}

void Links::take_deaf() {
  std::vector<int> peers;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    peers.swap(deaf_);
  }
  for (const int peer : peers) {
    ConnectionPtr link;
    size_t waiting = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      link = links_[static_cast<size_t>(peer)];
      if (const auto unsent = unsent_.find(peer); unsent != unsent_.end()) waiting = unsent->second.bytes;
      unsent_.erase(peer);
    }
    if (link != nullptr) {
      std::lock_guard<std::mutex> own(link->mutex);
      waiting = link->out.bytes;
    }
    const std::string why = deaf(peer, waiting).what();
    if (link != nullptr) forget(link);
    lost_peer(peer, Peer::kGone, why, true, link == nullptr);
  }
}

void Links::take_dials() {
  std::vector<Dial> asked;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    asked.swap(dials_);
    if (aborted_ || failed_) return;
  }
  const Clock::time_point now = Clock::now();
  for (Dial& dial : asked) {
    dial.asked = now;  // its time begins as this thread can do something about it
    try_dial(dial);
  }
}

void Links::try_dial(const Dial& one) {
  try {
    dial(one);
  } catch (const Failure& failure) { lost_peer(failure.rank, Peer::kGone, failure.what(), true, true); }
}

// At powers of two, so that strangers can't fill the log.
void Links::refused(const std::string& text) {
  const uint64_t count = ++refusals_;
  if ((count & (count - 1)) != 0) return;
  hooks_.log(count == 1 ? text : text + " (" + std::to_string(count) + " were refused so far)");
}

void Links::accept_all() {
  const size_t most = share_of_descriptors(kMaxStrangers) + 2 * group_.members.size();
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (listener_.get() < 0) return;
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd.get() < 0) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      return rest();  // no descriptors or no memory: the listener would be ready for ever
    }
    if (young_.size() >= most) make_room();
    try {
      admit(std::move(fd));
    } catch (const std::exception&) { return rest(); }  // no memory; if it was a peer, it dials again
  }
}

void Links::admit(Fd fd) {
  prepare(fd.get());
  auto connection = std::make_shared<Connection>(next_id_++, Handshake(group_, mine_));
  connection->socket = Socket(std::move(fd));
  connection->deadline = Clock::now() + kToGreet + kToGreetOfEach * group_.members.size();
  connection->watched = EPOLLIN;
  watch(connection->socket.fd(), connection->id, EPOLLIN, EPOLL_CTL_ADD);
  young_.emplace(connection->id, std::move(connection));
}

void Links::rest() {
  resting_ = true;
  rested_ = Clock::now() + kRest;
  watch(listener_.get(), kListenerId, 0, EPOLL_CTL_DEL);
  make_room();
}

// The oldest of those that have not greeted gives way.
void Links::make_room() {
  for (const auto& [id, c] : young_) {
    if (c->peer >= 0) continue;
    refused("a connection that did not greet made room for another");
    return forget(ConnectionPtr(c));
  }
}

void Links::dial(const Dial& one) {
  const int peer = one.peer;
  socklen_t length = 0;
  const sockaddr_storage address = group_.members[static_cast<size_t>(peer)].sockaddr_of(&length);
  auto connection = std::make_shared<Connection>(
      next_id_++,
      Handshake(group_, peer, one.stream, one.stream == 0 ? mine_[static_cast<size_t>(peer)] : Greeting()));
  connection->peer = peer;
  connection->connecting = true;
  connection->dial = one;
  const bool later = one.asked != Clock::time_point{};
  if (later) connection->deadline = one.asked + std::chrono::duration_cast<Clock::duration>(patience_);
  Fd fd(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) {
    const int error = errno;
    const bool passes = error == EMFILE || error == ENFILE;  // what holds the descriptors may end in time
    if (passes && !(later && connection->deadline <= Clock::now()))
      return dial_again(one, std::string("can't be dialed: ") + std::strerror(error));
    throw Failure(HVD_UNAVAILABLE, std::string("socket: ") + std::strerror(error), -1, error);
  }
  prepare(fd.get());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 && errno != EINPROGRESS) {
    const std::string why = name_of(peer) + " can't be reached: " + std::strerror(errno);
    throw Failure(HVD_PEER_LOST, why, one.attempt == 0 || later ? peer : -1, errno);
  }
  connection->socket = Socket(std::move(fd));
  connection->watched = EPOLLOUT;
  watch(connection->socket.fd(), connection->id, EPOLLOUT, EPOLL_CTL_ADD);
  young_.emplace(connection->id, std::move(connection));
}

void Links::handle(const ConnectionPtr& connection, uint32_t events) {
  if (connection->connecting) {
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(connection->socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error == ECONNRESET) return broke(connection, "closed its link");
    // Nobody listens there. Of one that did so a moment ago nothing is known but that: it may have given up,
    // and rank 0 is about to say so.
    const bool later = connection->dial.asked != Clock::time_point{};
    if (error == ECONNREFUSED && later && Clock::now() < connection->dial.asked + kLastWord)
      return broke(connection, "can't be reached");
    if (error != 0) {
      return lost(connection, std::string("can't be reached: ") + std::strerror(error),
                  later || connection->dial.attempt == 0);
    }
    connection->connecting = false;
    connection->watched = EPOLLIN;
    watch(connection->socket.fd(), connection->id, EPOLLIN, EPOLL_CTL_MOD);
    write(connection, connection->handshake.hello());
    if (connection->handshake.encrypted()) {
      connection->socket.encrypt(false, connection->handshake.tls_key());
      shake(connection);  // sends the first of TLS
    }
    return;
  }
  if ((events & EPOLLOUT) != 0) flush(connection);
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0) return;
  if (connection->greeted) {
    read(connection);
  } else {
    shake(connection);
  }
}

// No more is read of a connection than its greeting: what follows is the link's or the stream's.
void Links::shake(const ConnectionPtr& connection) {
  Handshake& handshake = connection->handshake;
  while (!handshake.done()) {
    const ssize_t got = connection->socket.read(scratch_.get(), handshake.wants());
    if (got == Socket::kEnd) return broke(connection, connection->socket.why());
    if (got == Socket::kNothing) break;
    std::vector<uint8_t> out;
    if (!handshake.take(scratch_.get(), static_cast<size_t>(got), &out)) {
      if (handshake.dials()) return lost(connection, "greeted with " + handshake.refusal());
      refused("a connection that greeted with " + handshake.refusal() + " was refused");  // contract 11
      return forget(connection);
    }
    if (!handshake.dials() && handshake.encrypted() && !connection->socket.encrypted())
      connection->socket.encrypt(true, handshake.tls_key());
    if (!out.empty()) write(connection, std::move(out));
  }
  flush(connection);  // what waited for the peer's part of TLS
  if (!handshake.done()) return;
  if (!connection->out.empty() || connection->socket.holds()) return broke(connection, "takes nothing");
  greeted(connection);
}

void Links::greeted(const ConnectionPtr& connection) {
  const Handshake& handshake = connection->handshake;
  const auto peer = static_cast<size_t>(handshake.peer());
  const uint32_t stream = handshake.stream();
  bool taken = false, last = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!handshake.dials()) {
      taken = (came_[peer] >> stream & 1) != 0 || (!star_ && (stream > 0 || links_[peer] != nullptr));
      came_[peer] |= uint32_t{1} << stream;
    }
    if (!taken) {
      connection->peer = handshake.peer();
      connection->greeted = true;
      connection->deadline = {};
      young_.erase(connection->id);
    }
    if (!taken && stream == 0) {
      grown_.emplace(connection->id, connection);
      if (links_[peer] != nullptr) {
        second_links_[peer] = connection;
      } else {
        theirs_[peer] = handshake.theirs();
        links_[peer] = connection;
        last = ++linked_ == expected_ && !star_;
        if (const auto waits = unsent_.find(connection->peer); waits != unsent_.end()) {
          const std::lock_guard<std::mutex> own(connection->mutex);
          connection->out = std::move(waits->second);
          flush_locked(*connection);
          unsent_.erase(waits);
        }
      }
    }
  }
  if (taken) {
    refused("a connection that greeted with a rank that is there already, " + std::to_string(peer) +
            ", was refused");
    return forget(connection);
  }
  if (stream > 0) return hand_over(connection);
  changed_.notify_all();
  if (last) close_listener();  // nobody else is to come
  read(connection);
}

void Links::hand_over(const ConnectionPtr& connection) {
  Socket socket;
  {
    std::lock_guard<std::mutex> lock(connection->mutex);
    watch(connection->socket.fd(), connection->id, 0, EPOLL_CTL_DEL);
    socket = std::move(connection->socket);
    connection->dead = true;
  }
  hooks_.stream(connection->peer, connection->handshake.stream(), connection->handshake.dials(),
                std::move(socket));
}

void Links::close_listener() {
  watch(listener_.get(), kListenerId, 0, EPOLL_CTL_DEL);
  listener_.reset();
  resting_ = false;
  const std::map<uint64_t, ConnectionPtr> all = young_;
  for (const auto& [id, c] : all) forget(c);
}

void Links::read(const ConnectionPtr& connection) {
  for (int turn = 0;; ++turn) {
    ssize_t got = 0;
    std::string why;
    bool more = false;
    {
      std::lock_guard<std::mutex> lock(connection->mutex);
      if (connection->dead) return;
      got = connection->socket.read(scratch_.get(), kReadSize);
      why = connection->socket.why();
      more = connection->socket.buffered();
    }
    if (got == Socket::kEnd) return lost(connection, why);
    if (got == Socket::kNothing) return;
    std::vector<uint8_t>& in = connection->in;
    in.insert(in.end(), scratch_.get(), scratch_.get() + got);
    if (!take_frames(connection)) return lost(connection, "sent a frame that makes no sense");
    if (in.size() > kMostEarly) {
      return lost(connection, "sent more than " + std::to_string(kMostEarly) +
                                  " bytes before this rank had opened the generation");
    }
    if (!more && static_cast<size_t>(got) < kReadSize) return;
    if (turn + 1 < kReadsPerTurn) continue;
    if (more) unread_.insert(connection->id);  // poll does not tell of what TLS holds
    return;
  }
}

// False if the bytes make no sense. Frames that come before the generation is open wait.
bool Links::take_frames(const ConnectionPtr& connection) {
  std::vector<uint8_t>& in = connection->in;
  size_t offset = 0;
  bool sense = true;
  while (sense && !connection->dead && in.size() - offset >= sizeof(FrameHeader)) {
    FrameHeader header;
    std::memcpy(&header, in.data() + offset, sizeof(header));
    const bool told = header.kind == Frame::kLost && star_ && connection->peer == 0;
    const bool known = told || (header.kind >= Frame::kStep && header.kind <= Frame::kGaveUp);
    if (!known || header.size > kMaxMessage ||
        (header.kind != Frame::kMessage && header.size != (told ? sizeof(int32_t) : 0))) {
      sense = false;
      break;
    }
    if (in.size() - offset < sizeof(header) + header.size) break;
    const uint8_t* const body = in.data() + offset + sizeof(header);
    if (header.kind == Frame::kMessage) {
      bool open = false, over = false;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        over = stopping_ || aborted_;
        open = open_;
      }
      if (!over && !open) break;
      if (!over) hooks_.message(connection->peer, body, header.size);
    } else if (told) {
      told_lost(body);
    } else {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto peer = static_cast<size_t>(connection->peer);
      if (header.kind == Frame::kStep && steps_[peer] < kMostSteps) ++steps_[peer];
      if (header.kind == Frame::kBye) peers_[peer] = Peer::kLeft;
      if (header.kind == Frame::kGaveUp) peers_[peer] = Peer::kGaveUp;
      changed_.notify_all();
    }
    offset += sizeof(header) + header.size;
    if (header.kind == Frame::kGaveUp) {
      lost(connection, "gave the generation up");
      break;
    }
  }
  in.erase(in.begin(), in.begin() + static_cast<ptrdiff_t>(offset));
  return sense;
}

void Links::write(const ConnectionPtr& connection, std::vector<uint8_t> bytes) {
  std::lock_guard<std::mutex> lock(connection->mutex);
  connection->out.add(std::move(bytes));
  flush_locked(*connection);
}

void Links::flush(const ConnectionPtr& connection) {
  std::lock_guard<std::mutex> lock(connection->mutex);
  if (!connection->dead) flush_locked(*connection);
}

}  // namespace hvdkit

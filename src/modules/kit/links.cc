// What the generation's and the users' threads call. See link_thread.cc for the thread behind.
#include "modules/kit/links.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>

namespace hvdkit {
namespace {
constexpr std::chrono::milliseconds kNews{10};
constexpr std::chrono::seconds kToBeRead{10};  // a peer's last word, by the links' thread
}  // namespace

Links::Links(const std::string& ip, LinkHooks hooks, Encrypt encrypt, const LinkLimits& limits)
    : hooks_(std::move(hooks)), limits_(limits) {
  listener_ = listen_at(ip, &blob_);
  blob_.encrypt = encrypt;
  epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
  wake_ = Fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (epoll_.get() < 0 || wake_.get() < 0) {
    throw Failure(HVD_UNAVAILABLE, std::string("epoll or eventfd: ") + std::strerror(errno), -1, errno);
  }
  watch(wake_.get(), kWakeId, EPOLLIN, EPOLL_CTL_ADD);
}

Links::~Links() { stop(); }

namespace {
std::vector<uint8_t> frame_of(Frame kind, const void* data, size_t size) {
  const FrameHeader header{static_cast<uint32_t>(size), kind};
  std::vector<uint8_t> frame(sizeof(header) + size);
  std::memcpy(frame.data(), &header, sizeof(header));
  if (size > 0) std::memcpy(frame.data() + sizeof(header), data, size);
  return frame;
}
}  // namespace

void Links::watch(int fd, uint64_t id, uint32_t events, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  (void)epoll_ctl(epoll_.get(), operation, fd, &event);
}

void Links::start(LinkGroup group, const std::vector<Greeting>& greetings, bool all,
                  Clock::time_point deadline) {
  const size_t size = group.members.size();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) throw Failure(HVD_PEER_LOST, "the generation was given up while it was connecting");
    group_ = std::move(group);
    mine_ = greetings;
    links_.resize(size);
    second_links_.resize(size);
    theirs_.resize(size);
    steps_.assign(size, 0);
    peers_.assign(size, Peer::kThere);
    asked_.assign(size, 0);
    came_.assign(size, 0);
    expected_ = all || group_.rank == 0 ? size - 1 : 1;
  }
  star_ = !all;
  patience_ = std::max<std::chrono::nanoseconds>(deadline - Clock::now(), limits_.patience);
  for (int peer = 0; peer < (all ? group_.rank : std::min(group_.rank, 1)); ++peer) {
    asked_[static_cast<size_t>(peer)] |= 1;
    dial({peer, 0});
  }
  watch(listener_.get(), kListenerId, EPOLLIN, EPOLL_CTL_ADD);
  const BlockSignals block;
  thread_ = std::thread([this] { run(); });
}

// Under mutex_.
std::string Links::missing_ranks() const {
  std::string missing;
  for (size_t peer = 0; peer < links_.size(); ++peer) {
    if (static_cast<int>(peer) != group_.rank && links_[peer] == nullptr)
      missing += (missing.empty() ? "" : ", ") + std::to_string(peer);
  }
  return "no greeting from rank " + missing;
}

std::vector<Greeting> Links::greet(LinkGroup group, const std::vector<Greeting>& greetings,
                                   Clock::time_point deadline) {
  for (const Greeting& greeting : greetings) {
    if (greeting.size() > kMaxGreeting) {
      throw Failure(HVD_INVALID, "a greeting of " + std::to_string(greeting.size()) +
                                     " bytes: expected at most " + std::to_string(kMaxGreeting));
    }
  }
  start(std::move(group), greetings, true, deadline);
  std::unique_lock<std::mutex> lock(mutex_);
  wait(
      lock, deadline, [&] { return linked_ == expected_; }, [&] { return missing_ranks(); });
  return theirs_;
}

void Links::meet(LinkGroup group, Clock::time_point deadline) {
  const std::vector<Greeting> greetings(group.members.size());
  start(std::move(group), greetings, false, deadline);
  const bool hub = group_.rank == 0;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    wait(
        lock, hub ? deadline : deadline + kLastWord,
        [&] { return hub ? linked_ == expected_ : links_[0] != nullptr && steps_[0] > 0; },
        [&] {
          return hub                    ? missing_ranks()
                 : links_[0] == nullptr ? std::string("no greeting from rank 0")
                                        : std::string("rank 0 did not say that all ranks are there");
        });
  }
  if (hub) tell_all(Frame::kStep);
}

void Links::ask(int peer, uint32_t stream) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    uint32_t& asked = asked_[static_cast<size_t>(peer)];
    if ((asked >> stream & 1) != 0) return;
    dials_.push_back({peer, stream});
    asked |= uint32_t{1} << stream;
  }
  nudge();
}

void Links::nudge() {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

void Links::wait(std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
                 const std::function<bool()>& ready, const std::function<std::string()>& missing) {
  const bool in_time = wait_until(lock, deadline, [&] { return aborted_ || failed_ || ready(); });
  if (aborted_) throw Failure(HVD_PEER_LOST, "the generation was given up while it was connecting");
  if (failed_) throw Failure(HVD_PEER_LOST, failed_text_, failed_peer_);
  if (!in_time) throw Failure(HVD_TIMEOUT, missing() + " before the deadline");
}

// The time for which this process was held up does not count: what the peers said meanwhile is unread.
bool Links::wait_until(std::unique_lock<std::mutex>& lock, Clock::time_point deadline,
                       const std::function<bool()>& ready) {
  for (Clock::time_point looked = Clock::now(); looked < deadline;) {
    const Clock::time_point due = std::min(deadline, looked + kBeat);
    if (changed_.wait_until(lock, due, ready)) return true;
    const Clock::time_point now = Clock::now();
    if (now - due > kPunctual) deadline += now - looked;
    looked = now;
  }
  return ready();
}

void Links::tell_step(int peer) {
  ConnectionPtr link;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    link = links_[static_cast<size_t>(peer)];
  }
  write_frame(*link, Frame::kStep, nullptr, 0);
}

void Links::wait_steps(int peer, int steps, const std::string& what, Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  wait(
      lock, deadline, [&] { return steps_[static_cast<size_t>(peer)] >= steps; },
      [&] { return name_of(peer) + " did not " + what; });
}

void Links::open() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_) throw Failure(HVD_PEER_LOST, "the generation was given up while it was connecting");
  if (failed_) throw Failure(HVD_PEER_LOST, failed_text_, failed_peer_);
  open_ = true;
  nudge();  // messages that came early wait in the connections: the thread looks at them again
}

void Links::send(int destination, const void* data, size_t size) {
  ConnectionPtr link;
  const size_t whole = sizeof(FrameHeader) + size;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) throw Failure(HVD_PEER_LOST, "the generation was given up");
    const auto peer = static_cast<size_t>(destination);
    if (peers_[peer] != Peer::kThere) {
      if (failed_) throw Failure(HVD_PEER_LOST, failed_text_, failed_peer_);
      throw Failure(HVD_PEER_LOST, "the link to " + name_of(destination) + " is closed",
                    peers_[peer] == Peer::kGaveUp ? -1 : destination);
    }
    link = links_[peer];
    if (link == nullptr) {
      Backlog& waiting = unsent_[destination];
      if (waiting.bytes + Backlog::cost(whole) > limits_.unread) {
        deaf_.push_back(destination);
        nudge();
        throw deaf(destination, waiting.bytes);
      }
      waiting.add(frame_of(Frame::kMessage, data, size));
      if ((asked_[peer] & 1) != 0) return;
      dials_.push_back({destination, 0});
      asked_[peer] |= 1;
    }
  }
  if (link == nullptr) return nudge();
  try {
    write_frame(*link, Frame::kMessage, data, size);
  } catch (const Failure& failure) {
    // The peer may have closed it because another was lost, and have said so: that is still to be read.
    throw blame(destination, failure.what());
  }
}

Failure Links::deaf(int peer, size_t waiting) const {
  return {HVD_PEER_LOST,
          name_of(peer) + " does not read: " + std::to_string(waiting) +
              " bytes of messages wait for it, expected at most " + std::to_string(limits_.unread),
          peer};
}

void Links::write_frame(Connection& connection, Frame kind, const void* data, size_t size) {
  const FrameHeader header{static_cast<uint32_t>(size), kind};
  std::unique_lock<std::mutex> lock(connection.mutex);
  if (connection.dead) {
    throw Failure(HVD_PEER_LOST, "the link to " + name_of(connection.peer) + " is closed", connection.peer);
  }
  size_t written = 0;
  if (const size_t waiting = connection.out.bytes;
      waiting > 0 && waiting + Backlog::cost(sizeof(header) + size) > limits_.unread) {
    lock.unlock();
    {
      std::lock_guard<std::mutex> all(mutex_);
      deaf_.push_back(connection.peer);
    }
    nudge();
    throw deaf(connection.peer, waiting);
  }
  if (connection.out.empty()) {
    const iovec parts[2] = {{const_cast<FrameHeader*>(&header), sizeof(header)},
                            {const_cast<void*>(data), size}};
    const ssize_t sent = connection.socket.write(parts, size > 0 ? 2 : 1);
    if (sent == Socket::kEnd) {
      throw Failure(HVD_PEER_LOST,
                    "the link to " + name_of(connection.peer) + " broke: " + connection.socket.why(),
                    connection.peer);
    }
    written = static_cast<size_t>(sent);
    if (written == sizeof(header) + size && !connection.socket.holds()) return;
  }
  if (written < sizeof(header) + size) {
    try {
      connection.out.add(frame_of(kind, data, size));
    } catch (const std::exception&) {
      // No memory for the rest of a frame, for which the peer would take what follows.
      if (written > 0) ::shutdown(connection.socket.fd(), SHUT_RDWR);
      throw;
    }
    if (connection.out.frames.size() == 1) connection.out_offset = written;
  }
  flush_locked(connection);
}

// Under the connection's mutex. An error is seen by the read that follows.
void Links::flush_locked(Connection& connection) {
  Socket& socket = connection.socket;
  bool ended = false;
  while (!ended && !connection.out.empty()) {
    const std::vector<uint8_t>& first = connection.out.frames.front();
    const iovec part{const_cast<uint8_t*>(first.data()) + connection.out_offset,
                     first.size() - connection.out_offset};
    const ssize_t sent = socket.write(&part, 1);
    ended = sent == Socket::kEnd;
    if (sent <= 0) break;
    connection.out_offset += static_cast<size_t>(sent);
    if (connection.out_offset < first.size()) continue;
    connection.out.pop();
    connection.out_offset = 0;
  }
  if (!ended && socket.holds()) ended = socket.flush() == Socket::kEnd;
  const bool waits = !ended && socket.full() && (socket.holds() || !connection.out.empty());
  const uint32_t events = EPOLLIN | (waits ? EPOLLOUT : 0U);
  if (events == connection.watched || connection.dead) return;
  connection.watched = events;
  watch(socket.fd(), connection.id, events, EPOLL_CTL_MOD);
}

Failure Links::blame(int peer, const std::string& text) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (failed_) return {HVD_PEER_LOST, failed_text_, failed_peer_};
  const bool known = peer >= 0 && static_cast<size_t>(peer) < peers_.size();
  const auto state = [&] { return known ? peers_[static_cast<size_t>(peer)] : Peer::kThere; };
  // A rank that gives up says so before it closes its link: it is not the one that was lost. The links'
  // thread reads its last word, or that there is none, as soon as it runs. That thread itself can't wait for
  // it, and blames nobody.
  const bool reads = std::this_thread::get_id() == reader_.load();
  if (!reads) {
    wait_until(lock, Clock::now() + (known ? std::chrono::milliseconds(kToBeRead) : kNews),
               [&] { return aborted_ || failed_ || state() != Peer::kThere; });
  }
  if (failed_) return {HVD_PEER_LOST, failed_text_, failed_peer_};
  const bool innocent = aborted_ || state() == Peer::kGaveUp || (reads && state() == Peer::kThere);
  return {HVD_PEER_LOST, text, innocent ? -1 : peer};
}

void Links::tell_all(Frame kind, const void* data, size_t size) noexcept {
  for (size_t i = 0;; ++i) {
    ConnectionPtr link;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const size_t ranks = second_links_.size();
      if (i == 2 * ranks) return;
      link = i < ranks ? links_[i] : second_links_[i - ranks];
    }
    if (link == nullptr) continue;
    try {
      write_frame(*link, kind, data, size);
    } catch (const std::exception&) {}  // it is gone, or without memory hears that the link ends
  }
}

void Links::leave() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    left_ = true;
  }
  tell_all(Frame::kBye);
}

void Links::abort() {
  bool left = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    left = left_;
  }
  changed_.notify_all();
  if (!left) tell_all(Frame::kGaveUp);
}

void Links::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  nudge();
  if (thread_.joinable()) thread_.join();
}

}  // namespace hvdkit

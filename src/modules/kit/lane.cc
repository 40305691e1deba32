// Sends and receives pieces, with polling in the thread that waits.
#include "modules/kit/lane.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hvdkit {
namespace {

constexpr size_t kStage = size_t{4} << 10;  // read together with a header; small pieces need no other read
constexpr size_t kTurn =
    size_t{1} << 20;  // sent at a time; then what has come is received, before it leaves the caches
constexpr size_t kChunk = size_t{256} << 10;  // checksums are taken of what is still in the cache
// Milliseconds. Ten minutes end what nobody has ended; they are counted, so that the time in which this
// process was stopped is one of them at most.
constexpr int kLook = 10 * 1000, kLooks = 60;

}  // namespace

class Lane::Part final : public Region {
 public:
  Part(Lane& lane, void* memory, size_t size)
      : lane_(lane), memory_(static_cast<char*>(memory)), size_(size) {}
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() override {
    if (pending_ > 0) lane_.drop(this);
  }

  void send(int peer, uint64_t slot, size_t offset, size_t size) override {
    check(offset, size);
    Peer& p = lane_.peer(peer);
    p.sends.push_back({this, memory_ + offset, size, 0, PieceHeader{slot, size, 0}, 0});
    ++pending_;
    if (p.sends.size() == 1) lane_.send_more(p);
  }
  void receive(int peer, uint64_t slot, size_t offset, size_t size) override {
    check(offset, size);
    Peer& p = lane_.peer(peer);
    p.receives.push_back({this, slot, memory_ + offset, size});
    p.early = false;
    ++pending_;
  }
  void wait_sent(int peer) override {
    while (sent_ == 0) lane_.wait_for_sockets("sending to", peer);
    --sent_;
  }
  void wait_received(int peer) override {
    while (received_ == 0) lane_.wait_for_sockets("receiving from", peer);
    --received_;
  }

  void was_sent() {
    --pending_;
    ++sent_;
  }
  void was_received() {
    --pending_;
    ++received_;
  }

 private:
  void check(size_t offset, size_t size) const {
    lane_.check();
    if (offset > size_ || size > size_ - offset) {
      throw Failure(HVD_INTERNAL, std::to_string(size) + " bytes at " + std::to_string(offset) +
                                      " of a region of " + std::to_string(size_));
    }
  }

  Lane& lane_;
  char* const memory_;
  const size_t size_;
  size_t pending_ = 0;              // begun and not ended
  size_t sent_ = 0, received_ = 0;  // ended, and not waited for
};

std::unique_ptr<Region> Lane::region(void* memory, size_t size) {
  return std::make_unique<Part>(*this, memory, size);
}

Lane::Lane(int size, bool checked, std::function<void(int peer)> ask)
    : peers_(static_cast<size_t>(size)),
      checked_(checked),
      ask_(std::move(ask)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (wake_.get() < 0)
    throw Failure(HVD_UNAVAILABLE, std::string("eventfd: ") + std::strerror(errno), -1, errno);
}

void Lane::attach(int peer, bool outward, Socket socket) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    attached_.push_back({peer, outward, std::move(socket)});
  }
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

Lane::Peer& Lane::peer(int rank) {
  std::unique_ptr<Peer>& held = peers_[static_cast<size_t>(rank)];
  if (held == nullptr) {
    held = std::make_unique<Peer>(rank);
    known_.push_back(held.get());
  }
  return *held;
}

// What was attached since the last time.
void Lane::take_attached() {
  uint64_t ignored = 0;
  (void)!::read(wake_.get(), &ignored, sizeof(ignored));
  check();  // an abort that came before this was read with it; one that comes later is still to be read
  std::vector<Attached> attached;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    attached.swap(attached_);
  }
  for (Attached& a : attached) {
    Peer& p = peer(a.peer);
    (a.outward ? p.out : p.in) = std::move(a.socket);
  }
  for (const Attached& a : attached) {
    Peer& p = peer(a.peer);
    if (a.outward) {
      send_more(p);
    } else if (!p.receives.empty()) {
      receive_more(p);
    }
  }
}

void Lane::abort() {
  aborted_ = true;
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
}

void Lane::check() const {
  if (aborted() || broken_) throw Failure(HVD_PEER_LOST, "the generation was given up");
}

void Lane::fail(int peer, const std::string& text) {
  check();  // what others do after an abort is no news
  throw Failure(HVD_PEER_LOST, "rank " + std::to_string(peer) + " " + text, peer);
}

// As much of the queue as the socket takes.
void Lane::send_more(Peer& p) {
  if (p.out.fd() < 0) {
    if (!p.sends.empty() && !std::exchange(p.asked, true)) ask_(p.rank);
    return;
  }
  for (size_t moved = 0; !p.sends.empty() && moved < kTurn;) {
    check();
    Send& s = p.sends.front();
    if (s.header_done == 0 && s.done == 0 && checked_ && !p.out.encrypted() && s.header.checksum == 0) {
      s.header.size |= PieceHeader::kChecked;
      s.header.checksum = checksum(s.data, s.size);
    }
    const bool all = s.header_done == sizeof(s.header) && s.done == s.size;
    if (!all) {
      const iovec parts[2] = {
          {reinterpret_cast<char*>(&s.header) + s.header_done, sizeof(s.header) - s.header_done},
          {const_cast<char*>(s.data) + s.done, std::min(s.size - s.done, kTurn)}};
      const ssize_t sent = p.out.write(parts, 2);
      if (sent == Socket::kEnd) fail(p.rank, p.out.why());
      if (sent == Socket::kNothing) return;
      moved += static_cast<size_t>(sent);
      const size_t of_header = std::min(static_cast<size_t>(sent), sizeof(s.header) - s.header_done);
      s.header_done += of_header;
      s.done += static_cast<size_t>(sent) - of_header;
      if (s.header_done < sizeof(s.header) || s.done < s.size) continue;
    }
    // It has ended when nothing of it is held back: nobody may be there later to move it.
    if (p.out.flush() == Socket::kEnd) fail(p.rank, p.out.why());
    if (p.out.holds()) return;
    s.part->was_sent();
    p.sends.pop_front();
  }
}

// What there is for the receives that are posted.
void Lane::receive_more(Peer& p) {
  if (p.in.fd() < 0) return;
  while (!p.receives.empty()) {
    if (!p.has_header && !take_header(p)) return;
    if (!p.busy) {
      const auto found = std::find_if(p.receives.begin(), p.receives.end(),
                                      [&](const Receive& r) { return r.slot == p.header.slot; });
      p.early = found == p.receives.end();
      if (p.early) return;
      const uint64_t size = p.header.size & ~PieceHeader::kChecked;
      if (found->size != size) {
        fail(p.rank, "sent " + std::to_string(size) + " bytes where " + std::to_string(found->size) +
                         " were expected");
      }
      p.busy = true;
      p.current = static_cast<size_t>(found - p.receives.begin());
      p.done = 0;
      if ((p.header.size & PieceHeader::kChecked) != 0) p.sum.reset();
    }
    if (!take_piece(p)) return;
  }
}

bool Lane::take_header(Peer& p) {
  const size_t have = p.staged.size() - p.taken;
  if (have < sizeof(p.header)) {
    uint8_t fresh[kStage];
    const ssize_t got = p.in.read(fresh, sizeof(fresh));
    if (got == Socket::kEnd) fail(p.rank, p.in.why());
    p.staged.erase(p.staged.begin(), p.staged.begin() + static_cast<ptrdiff_t>(p.taken));
    p.taken = 0;
    p.staged.insert(p.staged.end(), fresh, fresh + got);
    if (p.staged.size() < sizeof(p.header)) return false;
  }
  std::memcpy(&p.header, p.staged.data() + p.taken, sizeof(p.header));
  p.taken += sizeof(p.header);
  p.has_header = true;
  return true;
}

// True once it is there to its end.
bool Lane::take_piece(Peer& p) {
  const Receive& r = p.receives[p.current];
  const bool checks = (p.header.size & PieceHeader::kChecked) != 0;
  if (const size_t staged = std::min(p.staged.size() - p.taken, r.size - p.done); staged > 0) {
    std::memcpy(r.data + p.done, p.staged.data() + p.taken, staged);
    if (checks) p.sum.add(r.data + p.done, staged);
    p.taken += staged;
    p.done += staged;
  }
  while (p.done < r.size) {
    check();
    const size_t wanted = checks ? std::min(kChunk, r.size - p.done) : r.size - p.done;
    const ssize_t got = p.in.read(r.data + p.done, wanted);
    if (got == Socket::kEnd) fail(p.rank, p.in.why());
    if (got == Socket::kNothing) return false;
    if (checks) p.sum.add(r.data + p.done, static_cast<size_t>(got));
    p.done += static_cast<size_t>(got);
  }
  if (checks && p.sum.value() != p.header.checksum)
    fail(p.rank, "sent data that were changed on the way (their checksum differs)");
  p.has_header = p.busy = false;
  r.part->was_received();
  p.receives.erase(p.receives.begin() + static_cast<ptrdiff_t>(p.current));
  return true;
}

// Moves what can be moved; blocks until something can.
void Lane::wait_for_sockets(const char* what, int whom) {
  check();
  std::vector<pollfd> polls{{wake_.get(), POLLIN, 0}};
  polled_.assign(1, nullptr);
  int looks = kLooks, wait = kLook;
  for (Peer* const p : known_) {
    if (!p->sends.empty() && p->out.fd() >= 0) {
      polls.push_back({p->out.fd(), POLLOUT, 0});
      polled_.push_back(p);
    }
    if (p->receives.empty() || p->early || p->in.fd() < 0) continue;
    if (p->in.buffered() || p->taken < p->staged.size()) looks = 1, wait = 0;
    polls.push_back({p->in.fd(), POLLIN, 0});
    polled_.push_back(p);
  }
  int ready = 0;
  for (; looks > 0 && ready == 0; --looks) ready = ::poll(polls.data(), polls.size(), wait);
  check();
  if (ready < 0 && errno != EINTR) throw Failure(HVD_INTERNAL, std::string("poll: ") + std::strerror(errno));
  if (ready == 0 && wait != 0) {
    const std::string text =
        std::string(what) + " " + (whom < 0 ? "other ranks" : "rank " + std::to_string(whom));
    throw Failure(HVD_PEER_LOST, text + ": nothing has moved for 10 minutes", whom);
  }
  if (ready < 0) return;
  for (size_t i = 1; i < polls.size(); ++i) {
    Peer& p = *polled_[i];
    if (polls[i].events == POLLOUT) {
      if (polls[i].revents != 0) send_more(p);
    } else if (polls[i].revents != 0 || p.in.buffered() || p.taken < p.staged.size()) {
      receive_more(p);
    }
  }
  if ((polls[0].revents & POLLIN) != 0) take_attached();
}

// After a failure: a collective waits for all that it has begun.
void Lane::drop(Part* part) {
  broken_ = true;
  for (Peer* const known : known_) {
    Peer& p = *known;
    p.sends.erase(
        std::remove_if(p.sends.begin(), p.sends.end(), [&](const Send& s) { return s.part == part; }),
        p.sends.end());
    p.receives.erase(std::remove_if(p.receives.begin(), p.receives.end(),
                                    [&](const Receive& r) { return r.part == part; }),
                     p.receives.end());
  }
}

}  // namespace hvdkit

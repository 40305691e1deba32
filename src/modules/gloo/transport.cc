#include "modules/gloo/transport.h"

#include <gloo/transport/tcp/address.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <cstring>

namespace hvdgloo {
namespace {

// Gloo's own time-out of an operation: it only ends what no abort has ended, so that no thread waits for ever.
constexpr std::chrono::milliseconds kLastResort = std::chrono::minutes(10);
// A connection whose handshake is on its way must not be reset: Gloo's accepting side can't take that.
constexpr std::chrono::milliseconds kGrace(20);
constexpr size_t kRetired = 256;

::gloo::transport::tcp::attr attr_of(const std::string& ip) {
  ::gloo::transport::tcp::attr attr;
  attr.hostname = ip;
  return attr;
}

}  // namespace

// Keeps the loop awake while its event is set.
class Ticker final : public ::gloo::transport::tcp::Handler {
 public:
  Ticker() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_.get() < 0)
      throw Failure(HVD_UNAVAILABLE, std::string("eventfd: ") + std::strerror(errno), -1, errno);
  }
  void handleEvents(int) override {
    // Often enough to make a tick cheap, not so often that a wait burns the processor.
    const timespec pause{0, 20000};
    nanosleep(&pause, nullptr);
  }
  void set(bool on) {
    uint64_t count = 1;
    const ssize_t done =
        on ? ::write(fd_.get(), &count, sizeof(count)) : ::read(fd_.get(), &count, sizeof(count));
    (void)done;  // EAGAIN: it is as it should be
  }
  int fd() const { return fd_.get(); }

 private:
  const Fd fd_;
};

Transport::Transport(const std::string& ip) : ip_(ip), ticker_(std::make_unique<Ticker>()) {}

Transport::~Transport() {
  if (device_ == nullptr) return;
  hurry(true);
  retired_.clear();
  context_.reset();  // the pairs close softly: a reset would end a peer's process that has yet to accept
  hurry(false);
  try {
    device_->unregisterDescriptor(ticker_->fd(), ticker_.get());
  } catch (const std::exception&) {
    // Only if the descriptor is unknown to the loop, which then does not call the ticker either.
  }
  device_.reset();
}

void Transport::hurry(bool on) { ticker_->set(on); }

void Transport::create_pairs(int rank, int size, std::chrono::milliseconds timeout) {
  try {
    const BlockSignals block;  // the loop's thread inherits the mask
    device_ = std::make_shared<::gloo::transport::tcp::Device>(
        ::gloo::transport::tcp::CreateDeviceAttr(attr_of(ip_)));
    device_->registerDescriptor(ticker_->fd(), EPOLLIN, ticker_.get());
    context_ = device_->createContext(rank, size);
    // Gloo waits five times as long for a connection.
    context_->setTimeout(timeout / 5 + std::chrono::milliseconds(1));
    addresses_.resize(static_cast<size_t>(size));
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) addresses_[static_cast<size_t>(peer)] = context_->createPair(peer)->address().bytes();
    }
  } catch (const std::exception& e) {
    throw Failure(HVD_UNAVAILABLE, "Gloo makes no device or pairs at " + ip_ + ": " + e.what());
  }
}

std::vector<char> Transport::pair_address(int peer) const { return addresses_[static_cast<size_t>(peer)]; }

bool Transport::connects(int peer, const std::vector<char>& address) const {
  try {
    // As Gloo orders them: the higher address connects to the lower; ports compare in network order.
    const ::gloo::transport::tcp::Address mine(addresses_[static_cast<size_t>(peer)]);
    const ::gloo::transport::tcp::Address theirs(address);
    const sockaddr_storage a = mine.getSockaddr();
    const sockaddr_storage b = theirs.getSockaddr();
    if (a.ss_family != b.ss_family) {
      throw Failure(HVD_UNAVAILABLE,
                    "rank " + std::to_string(peer) + " is at " + theirs.str() + ", this rank at " +
                        mine.str() + ": they must be of one address family",
                    peer);
    }
    int order = 0;
    if (a.ss_family == AF_INET6) {
      const auto* x = reinterpret_cast<const sockaddr_in6*>(&a);
      const auto* y = reinterpret_cast<const sockaddr_in6*>(&b);
      order = std::memcmp(&x->sin6_addr, &y->sin6_addr, sizeof(in6_addr));
      if (order == 0) order = static_cast<int>(x->sin6_port) - static_cast<int>(y->sin6_port);
    } else {
      const auto* x = reinterpret_cast<const sockaddr_in*>(&a);
      const auto* y = reinterpret_cast<const sockaddr_in*>(&b);
      order = std::memcmp(&x->sin_addr, &y->sin_addr, sizeof(in_addr));
      if (order == 0) order = static_cast<int>(x->sin_port) - static_cast<int>(y->sin_port);
    }
    return order > 0;
  } catch (const Failure&) { throw; } catch (const std::exception& e) {
    throw Failure(HVD_PEER_LOST,
                  "rank " + std::to_string(peer) + " gave an address that Gloo can't read: " + e.what(),
                  peer);
  }
}

void Transport::connect(int peer, const std::vector<char>& address) {
  const auto& pair = context_->getPair(peer);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) throw Failure(HVD_PEER_LOST, "the generation was given up while it was connecting");
    connecting_ = pair.get();
  }
  std::string error;
  try {
    pair->connect(address);
  } catch (const std::exception& e) { error = e.what(); }
  std::lock_guard<std::mutex> lock(mutex_);
  connecting_ = nullptr;
  left_.notify_all();
  if (aborted_) throw Failure(HVD_PEER_LOST, "the generation was given up while it was connecting");
  if (!error.empty()) {
    throw Failure(HVD_PEER_LOST, "Gloo can't connect to rank " + std::to_string(peer) + ": " + error, peer);
  }
}

void Transport::abort() {
  std::unique_lock<std::mutex> lock(mutex_);
  aborted_ = true;
  for (::gloo::transport::UnboundBuffer* buffer : live_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
  if (connecting_ == nullptr) return;
  if (left_.wait_for(lock, kGrace, [this] { return connecting_ == nullptr; })) return;
  try {
    connecting_->close();  // connect() is behind mutex_ before the pair can go
  } catch (const std::exception&) {
    // Its socket is beyond use already; the wait ends with Gloo's time-out.
  }
}

Region::Region(Transport& transport, void* memory, size_t size) : transport_(transport) {
  buffer_ = transport.context_->createUnboundBuffer(memory, size);
  std::lock_guard<std::mutex> lock(transport.mutex_);
  transport.live_.insert(buffer_.get());
}

Region::~Region() {
  std::unique_ptr<::gloo::transport::UnboundBuffer> oldest;
  {
    std::lock_guard<std::mutex> lock(transport_.mutex_);
    transport_.live_.erase(buffer_.get());
    if (pending_ == 0) {  // Gloo touches the memory no more, only perhaps the buffer
      transport_.retired_.push_back(std::move(buffer_));
      if (transport_.retired_.size() <= kRetired) return;
      oldest = std::move(transport_.retired_.front());
      transport_.retired_.pop_front();
    }
  }
  if (buffer_ == nullptr) return;
  buffer_.reset();
  // What was cut off: Gloo's loop has let go of the memory, by a reference count that it drops in relaxed
  // order. It did so under the pair's mutex; taking that makes all it did to the memory happen before this. Each
  // time with another number: two executors may be here, and Gloo leaks a buffer whose number is taken.
  for (const int peer : peers_) {
    try {
      char byte = 0;
      transport_.context_->getPair(peer)->createRecvBuffer(transport_.settled_++, &byte, sizeof(byte));
    } catch (const std::exception&) {
      // The mutex was taken all the same.
    }
  }
}

void Region::used(int peer) {
  ++pending_;
  if (std::find(peers_.begin(), peers_.end(), peer) == peers_.end()) peers_.push_back(peer);
}

template <class Function>
void Region::guarded(int peer, const char* what, Function function) {
  bool done = false;
  std::string error;
  if (!transport_.aborted()) {
    try {
      done = function();
    } catch (const std::exception& e) { error = e.what(); }
  }
  if (transport_.aborted()) throw Failure(HVD_PEER_LOST, "the generation was given up");
  if (!done) {
    const std::string whom = peer < 0 ? "other ranks" : "rank " + std::to_string(peer);
    throw Failure(HVD_PEER_LOST, std::string(what) + " " + whom + " failed: " + error, peer);
  }
}

void Region::send(int peer, uint64_t slot, size_t offset, size_t size) {
  used(peer);
  guarded(peer, "sending to", [&] {
    buffer_->send(peer, slot, offset, size);
    return true;
  });
}

void Region::receive(int peer, uint64_t slot, size_t offset, size_t size) {
  used(peer);
  guarded(peer, "receiving from", [&] {
    buffer_->recv(peer, slot, offset, size);
    return true;
  });
}

void Region::wait_sent(int peer) {
  guarded(peer, "sending to", [&] { return buffer_->waitSend(nullptr, kLastResort); });
  --pending_;
}

void Region::wait_received(int peer) {
  guarded(peer, "receiving from", [&] { return buffer_->waitRecv(nullptr, kLastResort); });
  --pending_;
}

}  // namespace hvdgloo

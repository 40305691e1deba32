// Gloo underneath: one device, one context and a pair per peer for one generation, and waits that an abort
// frees. Public headers of Gloo only.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "modules/kit/failure.h"
#include "modules/kit/net.h"

namespace hvdgloo {

using hvdkit::BlockSignals;
using hvdkit::Failure;
using hvdkit::Fd;

class Ticker;

class Transport {
 public:
  explicit Transport(const std::string& ip);  // an address of this host
  ~Transport();                               // blocks for some 20 ms: Gloo's loop ticks

  /// Makes the device, with Gloo's loop thread, which ticks every 10 ms from here on: not before there is somebody
  /// to talk to. One pair per peer; they listen from here on.
  void create_pairs(int rank, int size, std::chrono::milliseconds timeout);
  std::vector<char> pair_address(int peer) const;

  /// Which side of a pair connects follows from the addresses: true here, false there.
  bool connects(int peer, const std::vector<char>& address) const;
  /// Connects, or on the listening side waits for Gloo's loop to accept; there it is to be called when
  /// the peer has connected. Throws Failure.
  void connect(int peer, const std::vector<char>& address);
  /// Makes Gloo's loop tick at once and not every 10 ms, which is what each closing of a socket waits for.
  void hurry(bool on);

  /// Any thread, idempotent, within 50 ms: frees every wait, now and later.
  void abort();
  bool aborted() const { return aborted_.load(); }

 private:
  friend class Region;
  const std::string ip_;
  std::unique_ptr<Ticker> ticker_;
  std::shared_ptr<::gloo::transport::tcp::Device> device_;
  std::shared_ptr<::gloo::transport::Context> context_;
  std::vector<std::vector<char>> addresses_;

  std::mutex mutex_;
  std::condition_variable left_;
  std::atomic<bool> aborted_{false};
  std::atomic<int> settled_{0};
  ::gloo::transport::Pair* connecting_ = nullptr;
  std::set<::gloo::transport::UnboundBuffer*> live_;
  // Of operations that came to their end. Gloo's destructor spins until its loop has dropped its reference,
  // which at once would mean to wait for the loop's next turn on the processor.
  std::deque<std::unique_ptr<::gloo::transport::UnboundBuffer>> retired_;
};

/// Memory under operations. Several sends and receives may be under way; those of one peer complete in
/// order. Once it is destroyed nothing touches the memory any more, whatever was pending: Gloo's buffer
/// waits for the loop to let go of it, and the loop finds no buffer afterwards.
/// Operations throw Failure(HVD_PEER_LOST) with the peer's rank, or rank -1 after an abort.
class Region {
 public:
  Region(Transport& transport, void* memory, size_t size);
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  ~Region();

  void send(int peer, uint64_t slot, size_t offset, size_t size);
  void receive(int peer, uint64_t slot, size_t offset, size_t size);
  void wait_sent(int peer);  // one of the sends; peer is for the message, -1: any
  void wait_received(int peer);

 private:
  template <class Function>
  void guarded(int peer, const char* what, Function function);
  void used(int peer);
  Transport& transport_;
  std::unique_ptr<::gloo::transport::UnboundBuffer> buffer_;
  int pending_ = 0;         // operations begun and not waited for to their end
  std::vector<int> peers_;  // of the operations
};

}  // namespace hvdgloo

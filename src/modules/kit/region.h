// The transport that collectives run on: it sends and receives pieces of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace hvdkit {

/// Memory under operations. Several sends and receives may be under way; those of one peer and slot complete
/// in order. Once it is destroyed nothing touches the memory any more, whatever was pending. Operations throw
/// Failure(HVD_PEER_LOST) with the peer's rank, or rank -1 after an abort.
class Region {
 public:
  virtual ~Region() = default;
  virtual void send(int peer, uint64_t slot, size_t offset, size_t size) = 0;
  virtual void receive(int peer, uint64_t slot, size_t offset, size_t size) = 0;
  virtual void wait_sent(int peer) = 0;  // one of the sends; peer is for the message, -1: any
  virtual void wait_received(int peer) = 0;
};

/// Serves one operation at a time: whoever waits for the operation moves its data.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::unique_ptr<Region> region(void* memory, size_t size) = 0;
};

}  // namespace hvdkit

// Bulk data between ranks: a lane has a connection to each peer that it has sent to, one from each peer that
// has sent to it, and serves one operation at a time. Whoever waits for the operation moves its data, so that
// there is no thread between it and the sockets; receives are posted, and what comes is received into place.
//
// Operations run on a lane in the same order on every rank, so that what comes early on a connection belongs
// to this rank's next one and may wait in the socket: nothing is buffered for want of a receiver, and nobody
// waits in a circle. (Of all operations of the lane that have not ended everywhere, all members of the oldest
// one are at it, and whatever was sent before its data belongs to older ones.)
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "hvd/backend.hpp"
#include "modules/kit/checksum.h"
#include "modules/kit/net.h"
#include "modules/kit/region.h"
#include "modules/kit/socket.h"

namespace hvdkit {

/// What precedes each piece of data on a connection.
struct PieceHeader {
  uint64_t slot;
  uint64_t size;      // bytes; the highest bit says that there is a checksum
  uint64_t checksum;  // of the bytes that follow

  static constexpr uint64_t kChecked = uint64_t{1} << 63;
};

class Lane final : public Transport {
 public:
  /// size: number of ranks. checked: whether this end sends checksums where a connection is not encrypted.
  /// ask: asks for a connection to a peer, which comes by attach; called once for each. Throws
  /// Failure(HVD_UNAVAILABLE) without descriptors.
  Lane(int size, bool checked, std::function<void(int peer)> ask);
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  std::unique_ptr<Region> region(void* memory, size_t size) override;
  /// Any thread: a connection to the peer (outward), or from it.
  void attach(int peer, bool outward, Socket socket);
  /// Any thread, at once: ends the wait that is under way, and every later one.
  void abort();
  bool aborted() const { return aborted_.load(); }

 private:
  class Part;  // a region of this lane
  struct Send {
    Part* part;
    const char* data;
    size_t size, done;  // of data
    PieceHeader header;
    size_t header_done;
  };
  struct Receive {
    Part* part;
    uint64_t slot;
    char* data;
    size_t size;
  };
  struct Peer {
    explicit Peer(int its_rank) : rank(its_rank) {}
    const int rank;
    Socket out, in;  // either may not be there yet
    bool asked = false;
    std::deque<Send> sends;
    std::vector<Receive> receives;  // in the order in which they were posted
    std::vector<uint8_t> staged;    // read and not taken yet
    size_t taken = 0;               // of staged
    PieceHeader header{};           // of the piece that comes
    bool has_header = false;
    bool early = false;  // nobody has asked for it yet
    bool busy = false;   // it is partly received: into receives[current]
    size_t current = 0, done = 0;
    Checksum sum;
  };

  void check() const;  // throws HVD_PEER_LOST when the lane is of no more use
  [[noreturn]] void fail(int peer, const std::string& text);
  struct Attached {
    int peer;
    bool outward;
    Socket socket;
  };

  Peer& peer(int rank);
  void send_more(Peer& peer);
  void receive_more(Peer& peer);
  bool take_header(Peer& peer);
  bool take_piece(Peer& peer);
  void take_attached();
  void wait_for_sockets(const char* what, int peer);
  void drop(Part* part);

  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; those that this lane has had to do with
  std::vector<Peer*> known_;                  // the same
  std::vector<Peer*> polled_;                 // scratch: the peer of each entry
  const bool checked_;
  const std::function<void(int peer)> ask_;
  Fd wake_;
  std::mutex mutex_;  // guards attached_
  std::vector<Attached> attached_;
  std::atomic<bool> aborted_{false};
  bool broken_ = false;  // an operation ended in its midst: nobody knows what the connections hold
};

}  // namespace hvdkit

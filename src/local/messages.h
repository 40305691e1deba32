// Messages between the ranks of one host: a ring for each ordered pair, and a bell of each rank.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "local/bell.h"
#include "local/stream.h"

namespace hvd::local {

/// Of one generation. One thread at a time has the role of the receiver: it takes what has come, keeps
/// writing what found no room, and calls the handlers, which may send. The message thread has it unless
/// somebody who waits lends itself; then the message thread sleeps on, and peers need not wake it.
class Messages {
 public:
  /// boxes and ranks as HostGroup has them. handlers live as long as this.
  Messages(uint64_t generation, std::vector<std::shared_ptr<Box>> boxes, std::vector<int32_t> ranks,
           int32_t index, const backend::HostHandlers& handlers, LoggerPtr logger);

  /// Any thread. HVD_PEER_LOST after stop, or when that peer's memory is broken.
  Status send(int32_t index, std::span<const uint8_t> message);

  /// The message thread's: receives until stop.
  void run();

  /// For a thread that lends itself. False: another has the role. Between enter and leave it calls poll;
  /// leave gives the role back, and polls itself what came at the last moment.
  bool enter();
  bool poll();  // whether there was anything
  void leave();

  /// Any thread, also within a handler, once: no message and no failure is told afterwards but for one that
  /// is under way. Peers see `last`; kGaveUp is a failure to them.
  void stop(BoxState last);
  bool stopped() const { return stopped_.load(); }

 private:
  struct Peer {
    Peer(Box& their_box, Ring& out, Ring& in, int32_t their_rank)
        : box(their_box), out_ring(out), rank(their_rank), writer(out), reader(in) {}
    Box& box;
    Ring& out_ring;
    const int32_t rank;
    std::mutex mutex;  // writer, written_to
    StreamWriter writer;
    bool broken = false;
    std::atomic<bool> keeps{false};       // the writer has more than the ring takes
    std::atomic<bool> complained{false};  // broken, and to be told by whoever has the role
    StreamReader reader;
    std::atomic<bool> over{false};  // its end was told
  };

  bool pending() const;
  bool receive(Peer& peer);
  void flush(Peer& peer);
  void fail(Peer& peer, const std::string& text, int32_t blamed);
  template <class Function>
  void tell(const char* what, Function function);

  const uint64_t generation_;
  const std::vector<std::shared_ptr<Box>> boxes_;
  Box& own_;
  const backend::HostHandlers& handlers_;
  const LoggerPtr logger_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by index; none for this rank
  std::atomic<bool> role_{false};             // whether somebody has it
  std::atomic<bool> stopped_{false};
  Sleeper sleeper_;  // the message thread
};

}  // namespace hvd::local

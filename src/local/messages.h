// Messages between the ranks of one host: a ring for each ordered pair, and a bell of each rank.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "local/bell.h"
#include "local/boxes.h"
#include "local/stream.h"

namespace hvd::local {

/// Of one generation. One thread at a time has the role of the receiver: it takes what has come, keeps
/// writing what found no room, and calls the handlers, which may send. The message thread has it unless
/// somebody who waits lends itself; then the message thread sleeps on, and peers need not wake it.
class Messages {
 public:
  /// boxes and ranks as HostGroup has them. handlers live as long as this.
  Messages(uint64_t generation, std::shared_ptr<Boxes> boxes, const std::vector<int32_t>& ranks,
           const backend::HostHandlers& handlers, LoggerPtr logger, size_t most_kept = kMostKept);
  Messages(uint64_t generation, std::vector<std::shared_ptr<Box>> boxes, const std::vector<int32_t>& ranks,
           int32_t index, const backend::HostHandlers& handlers, LoggerPtr logger,
           size_t most_kept = kMostKept)
      : Messages(generation, std::make_shared<Boxes>(std::move(boxes), index), ranks, handlers,
                 std::move(logger), most_kept) {}

  /// Any thread. HVD_PEER_LOST after stop, when that peer's memory is broken, or when it does not read.
  Status send(int32_t index, std::span<const uint8_t> message);

  /// The message thread's: receives until stop.
  void run();

  /// For a thread that lends itself. False: another has the role. Between enter and leave it calls poll;
  /// leave gives the role back, and polls itself what came at the last moment. Without memory what has come
  /// stays where it is, to be polled again.
  bool enter();
  bool poll() noexcept;  // whether there was anything
  void leave();

  /// Any thread, also within a handler, once: no message and no failure is told afterwards but for one that
  /// is under way. Peers see `last`; kGaveUp is a failure to them.
  void stop(BoxState last);
  bool stopped() const { return stopped_.load(); }

 private:
  struct Peer {
    Peer(int32_t its_index, int32_t its_rank, Ring& in) : index(its_index), rank(its_rank), reader(in) {}
    const int32_t index, rank;
    std::mutex mutex;                    // writer, broken, why
    std::optional<StreamWriter> writer;  // from the first message to it on
    bool broken = false;
    std::string why;                      // it is broken
    std::atomic<bool> keeps{false};       // the writer has more than the ring takes
    std::atomic<bool> complained{false};  // broken, and to be told by whoever has the role
    StreamReader reader;
    std::atomic<bool> over{false};  // its end was told
  };

  /// Rings a peer's bell if its box is mapped already.
  void wake(const Peer& peer) const {
    if (Box* const box = boxes_->known(peer.index)) ring(box->bells.message);
  }
  /// What it tells without a message: kOpen as long as its box is not mapped.
  BoxState state_of(const Peer& peer) const {
    const Box* const box = boxes_->known(peer.index);
    return box == nullptr ? BoxState::kOpen
                          : static_cast<BoxState>(box->state.load(std::memory_order_seq_cst));
  }
  /// Whether there is something to write that the ring had no room for, and now has.
  bool can_flush(const Peer& peer) const {
    return peer.keeps &&
           boxes_->known(peer.index)->rings[boxes_->index()].starved.value.load(std::memory_order_seq_cst) ==
               0;
  }
  static constexpr uint64_t bit(const Peer& peer) { return uint64_t{1} << peer.index % 64; }
  /// Whether a peer's ring is worth a look: among many, each of those costs a page, and most never send.
  bool listens_to(const Peer& peer) const {
    return all_ ||
           ((heard_[static_cast<size_t>(peer.index) / 64] |
             own_.bells.senders[static_cast<size_t>(peer.index) / 64].load(std::memory_order_seq_cst)) &
            bit(peer)) != 0;
  }
  bool has_come(const Peer& peer) const { return listens_to(peer) && !peer.reader.empty(); }
  void hear(const Peer& peer) {
    std::atomic<uint64_t>& word = heard_[static_cast<size_t>(peer.index) / 64];
    if (!all_ && (word.load(std::memory_order_relaxed) & bit(peer)) == 0) word |= bit(peer);
  }
  void announce(Box& box) const;
  void listen_to_all();
  void tell_losses();
  bool pending() const;
  void ring_writer(const Peer& peer) noexcept;
  bool next(Peer& peer);
  void flush(Peer& peer);
  void give_up(Peer& peer);
  void fail(Peer& peer, const std::string& text, int32_t blamed);
  template <class Function>
  void tell(const char* what, Function function);

  const uint64_t generation_;
  const size_t most_kept_;
  const std::shared_ptr<Boxes> boxes_;
  Box& own_;
  const backend::HostHandlers& handlers_;
  const LoggerPtr logger_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by index; none for this rank
  const bool all_;                            // few: their rings are all looked at
  std::array<std::atomic<uint64_t>, kMostLocal / 64>
      heard_{};                    // who has sent, whatever a peer writes over `senders`
  std::atomic<bool> role_{false};  // whether somebody has it
  std::atomic<bool> stopped_{false};
  Sleeper sleeper_;  // the message thread
};

}  // namespace hvd::local

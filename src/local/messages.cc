// The message thread: receives, flushes, and tells failures once.
#include "local/messages.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "local/bell.h"

namespace hvd::local {
namespace {

constexpr int kAtOnce = 64;  // messages of one peer before the next one's turn
constexpr int kLastLooks = 4;
constexpr Duration kPause = std::chrono::milliseconds(1);  // where there is no memory for a message

void replace(std::atomic<uint32_t>& word, uint32_t from, uint32_t to) {
  uint32_t seen = word.load(std::memory_order_seq_cst);
  if ((seen & kState) == from) word.compare_exchange_strong(seen, (seen & ~kState) | to);
}

}  // namespace

Messages::Messages(uint64_t generation, std::shared_ptr<Boxes> boxes, const std::vector<int32_t>& ranks,
                   const backend::HostHandlers& handlers, LoggerPtr logger, size_t most_kept)
    : generation_(generation),
      most_kept_(most_kept),
      boxes_(std::move(boxes)),
      own_(boxes_->own()),
      handlers_(handlers),
      logger_(std::move(logger)),
      all_(boxes_->size() <= kMostAmongAll) {
  for (int32_t i = 0; i < boxes_->size(); ++i) {
    peers_.push_back(i == boxes_->index()
                         ? nullptr
                         : std::make_unique<Peer>(i, ranks[static_cast<size_t>(i)], own_.rings[i]));
  }
}

// Before the bell is rung: whoever looks then sees it.
void Messages::announce(Box& box) const {
  if (all_) return;
  const auto index = static_cast<size_t>(boxes_->index());
  std::atomic<uint64_t>& word = box.bells.senders[index / 64];
  const uint64_t mine = uint64_t{1} << index % 64;
  if ((word.load(std::memory_order_seq_cst) & mine) == 0) word.fetch_or(mine, std::memory_order_seq_cst);
}

// Once in a while: a peer can take back what others have announced.
void Messages::listen_to_all() {
  if (all_) return;
  for (const auto& peer : peers_) {
    if (peer != nullptr && !peer->over && !peer->reader.empty()) hear(*peer);
  }
}

Status Messages::send(int32_t index, std::span<const uint8_t> message) {
  Peer& peer = *peers_[static_cast<size_t>(index)];
  {
    const std::lock_guard lock(peer.mutex);
    if (stopped() || peer.broken) {
      Status status(HVD_PEER_LOST, stopped() ? "the generation was given up" : peer.why);
      return status.at_rank(peer.rank);
    }
    Box* const box = boxes_->reach(index);
    if (box == nullptr) {
      Status status(HVD_PEER_LOST, fmt::format("rank {}: its shared memory can't be had", peer.rank));
      return boxes_->is_gone(index) ? status.at_rank(peer.rank) : status;
    }
    if (!peer.writer) peer.writer.emplace(box->rings[boxes_->index()], most_kept_);
    if (peer.writer->write(message)) {
      if (peer.writer->keeps()) peer.keeps = true;
      announce(*box);
    } else {
      give_up(peer);
      ring(own_.bells.message);  // failure is not told from here
    }
  }
  wake(peer);
  return {};
}

/// Under the peer's mutex: nothing can be sent to it any more.
void Messages::give_up(Peer& peer) {
  peer.why =
      peer.writer->full()
          ? fmt::format("rank {} does not read: {} bytes of messages wait for it, expected at most {}",
                        peer.rank, peer.writer->kept(), most_kept_)
          : fmt::format("the memory of rank {} is broken: what it says it has read can't be", peer.rank);
  peer.broken = true;
  peer.complained = true;
  peer.keeps = false;
  peer.writer.reset();  // and what it keeps
}

void Messages::flush(Peer& peer) {
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.broken) return;
    if (!peer.writer->flush()) give_up(peer);
    if (peer.broken || !peer.writer->keeps()) peer.keeps = false;
  }
  wake(peer);
}

void Messages::tell_losses() {
  for (const Boxes::Loss& loss : boxes_->take_losses()) {
    Peer& peer = *peers_[static_cast<size_t>(loss.index)];
    fail(peer, fmt::format("rank {}: its shared memory can't be had: {}", peer.rank, loss.reason),
         loss.gone ? peer.rank : -1);
  }
}

template <class Function>
void Messages::tell(const char* what, Function function) {
  try {
    function();
  } catch (const std::exception& e) {
    try {
      logger_->error("local: {} of the host: {}", what, e.what());
    } catch (const std::exception&) {}  // no memory for the line
  }
}

void Messages::fail(Peer& peer, const std::string& text, int32_t blamed) {
  peer.over = true;
  if (!handlers_.failure) return;
  tell("failure", [&] { handlers_.failure(generation_, blamed, text); });
}

// If it is not rung it finds the room by itself, a second later at most. One that has found it may have left:
// that is no loss.
void Messages::ring_writer(const Peer& peer) noexcept {
  try {
    std::string reason;
    if (boxes_->try_reach(peer.index, &reason) == Opening::kDone) wake(peer);
  } catch (const std::exception&) {}  // no memory to map its box
}

// False if none has come. A ring that is broken is the peer's failure.
bool Messages::next(Peer& peer) {
  const StreamReader::Result result = peer.reader.next();
  if (peer.reader.wanted()) ring_writer(peer);
  if (result == StreamReader::Result::kBroken) {
    fail(peer, fmt::format("the memory shared with rank {} is broken: {}", peer.rank, peer.reader.reason()),
         peer.rank);
  }
  return result == StreamReader::Result::kMessage;
}

bool Messages::poll() noexcept try {
  bool any = false;
  if (boxes_->has_losses()) tell_losses();
  for (const auto& held : peers_) {
    if (held == nullptr || held->over.load(std::memory_order_relaxed)) continue;
    if (stopped()) return any;
    Peer& peer = *held;
    // Before its ring: what it sent before it left is still taken.
    const BoxState state = state_of(peer);
    if (listens_to(peer)) {
      hear(peer);
      for (int i = 0; i < kAtOnce && !stopped() && next(peer); ++i) {
        any = true;
        if (!handlers_.message) continue;
        tell("message", [&] { handlers_.message(generation_, peer.rank, peer.reader.message()); });
      }
    }
    if (can_flush(peer)) {
      flush(peer);
      any = true;
    }
    if (peer.over || stopped()) continue;
    if (peer.complained) {
      std::string why;
      {
        const std::lock_guard lock(peer.mutex);
        why = peer.why;
      }
      fail(peer, why, peer.rank);
    } else if (state != BoxState::kOpen && !has_come(peer)) {
      if (state == BoxState::kLeft) {
        peer.over = true;
      } else {
        // It may have learned sooner than this rank that another one was lost: it is not to blame.
        fail(peer, fmt::format("rank {} gave the generation up", peer.rank), -1);
      }
    }
  }
  return any;
} catch (const std::exception&) {
  std::this_thread::sleep_for(kPause);  // others may give some memory back
  return false;
}

bool Messages::pending() const {
  if (stopped()) return false;
  if (boxes_->has_losses()) return true;
  for (const auto& peer : peers_) {
    if (peer == nullptr || peer->over) continue;
    if (has_come(*peer) || peer->complained || state_of(*peer) != BoxState::kOpen || can_flush(*peer)) {
      return true;
    }
  }
  return false;
}

bool Messages::enter() {
  if (role_.load(std::memory_order_relaxed) || role_.exchange(true)) return false;
  replace(own_.bells.message, kAsleep, kAwake);
  return true;
}

// The bell is hung up again after the role is free, and then comes the last look: whoever rings before that
// look is seen by it, whoever rings later wakes the message thread, and it finds the role free or held by one
// who will look again.
void Messages::leave() {
  for (int round = 0;; ++round) {
    role_ = false;
    replace(own_.bells.message, kAwake, kAsleep);
    if (!pending()) return;
    if (round == kLastLooks)
      return ring(own_.bells.message);  // there is no end to it: the message thread's turn
    if (!enter()) return;
    poll();
  }
}

// Only stopped_ ends it: a peer can write kClosed, or anything, into the bell.
void Messages::run() {
  while (!stopped()) {
    // Read before the role: its holder may leave, and the bell be rung, before this thread sleeps.
    uint32_t word = own_.bells.message.load(std::memory_order_seq_cst);
    if (enter()) {
      while (poll() && !stopped()) {}
      leave();
      word = own_.bells.message.load(std::memory_order_seq_cst);
      if ((word & kState) == kAwake) continue;
      if ((word & kState) != kAsleep && !stopped()) {  // a peer's doing; if stop wrote it, stopped_ says so
        own_.bells.message.store(kAsleep, std::memory_order_seq_cst);
        continue;
      }
    }
    sleeper_.sleep(own_.bells.message, word, [this] { return stopped(); });
    if (own_.bells.message.load(std::memory_order_seq_cst) == word) listen_to_all();
  }
}

void Messages::stop(BoxState last) {
  own_.state.store(static_cast<uint32_t>(last), std::memory_order_seq_cst);
  stopped_ = true;
  sleeper_.rouse(own_.bells.message, kClosed);
  for (const auto& peer : peers_) {
    if (peer != nullptr) wake(*peer);
  }
}

}  // namespace hvd::local

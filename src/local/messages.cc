// The message thread: receives, flushes, and tells failures once.
#include "local/messages.h"

#include <fmt/format.h>

#include "local/bell.h"

namespace hvd::local {
namespace {

constexpr int kAtOnce = 64;  // messages of one peer before the next one's turn
constexpr int kLastLooks = 4;

void replace(std::atomic<uint32_t>& word, uint32_t from, uint32_t to) {
  uint32_t seen = word.load(std::memory_order_seq_cst);
  if ((seen & kState) == from) word.compare_exchange_strong(seen, (seen & ~kState) | to);
}

}  // namespace

Messages::Messages(uint64_t generation, std::vector<std::shared_ptr<Box>> boxes, std::vector<int32_t> ranks,
                   int32_t index, const backend::HostHandlers& handlers, LoggerPtr logger)
    : generation_(generation),
      boxes_(std::move(boxes)),
      own_(*boxes_[static_cast<size_t>(index)]),
      handlers_(handlers),
      logger_(std::move(logger)) {
  for (size_t i = 0; i < boxes_.size(); ++i) {
    if (static_cast<int32_t>(i) == index) {
      peers_.emplace_back();
      continue;
    }
    peers_.push_back(std::make_unique<Peer>(*boxes_[i], boxes_[i]->rings[index], own_.rings[i], ranks[i]));
  }
}

Status Messages::send(int32_t index, std::span<const uint8_t> message) {
  Peer& peer = *peers_[static_cast<size_t>(index)];
  {
    const std::lock_guard lock(peer.mutex);
    if (stopped() || peer.broken) {
      Status status(HVD_PEER_LOST, stopped() ? "the generation was given up"
                                             : fmt::format("the memory of rank {} is broken", peer.rank));
      return status.at_rank(peer.rank);
    }
    if (peer.writer.write(message)) {
      if (peer.writer.keeps()) peer.keeps = true;
    } else {
      peer.broken = true;
      peer.complained = true;
      ring(own_.bells.message);  // failure is not told from here
    }
  }
  ring(peer.box.bells.message);
  return {};
}

void Messages::flush(Peer& peer) {
  {
    const std::lock_guard lock(peer.mutex);
    if (peer.broken) return;
    if (!peer.writer.flush()) {
      peer.broken = true;
      peer.complained = true;
    }
    if (peer.broken || !peer.writer.keeps()) peer.keeps = false;
  }
  ring(peer.box.bells.message);
}

template <class Function>
void Messages::tell(const char* what, Function function) {
  try {
    function();
  } catch (const std::exception& e) { logger_->error("local: {} of the host: {}", what, e.what()); }
}

void Messages::fail(Peer& peer, const std::string& text, int32_t blamed) {
  peer.over = true;
  if (!handlers_.failure) return;
  tell("failure", [&] { handlers_.failure(generation_, blamed, text); });
}

bool Messages::receive(Peer& peer) {
  bool any = false;
  for (int i = 0; i < kAtOnce && !stopped(); ++i) {
    const StreamReader::Result result = peer.reader.next();
    if (peer.reader.wanted()) ring(peer.box.bells.message);
    if (result == StreamReader::Result::kBroken) {
      fail(peer, fmt::format("the memory shared with rank {} is broken: {}", peer.rank, peer.reader.reason()),
           peer.rank);
      return true;
    }
    if (result == StreamReader::Result::kNothing) break;
    any = true;
    if (!handlers_.message) continue;
    tell("message", [&] { handlers_.message(generation_, peer.rank, peer.reader.message()); });
  }
  return any;
}

bool Messages::poll() {
  bool any = false;
  for (const auto& held : peers_) {
    if (held == nullptr || held->over.load(std::memory_order_relaxed)) continue;
    if (stopped()) return any;
    Peer& peer = *held;
    // Before its ring: what it sent before it left is still taken.
    const auto state = static_cast<BoxState>(peer.box.state.load(std::memory_order_seq_cst));
    any |= receive(peer);
    if (peer.keeps && peer.out_ring.starved.value.load(std::memory_order_seq_cst) == 0) {
      flush(peer);
      any = true;
    }
    if (peer.over || stopped()) continue;
    if (peer.complained) {
      fail(peer, fmt::format("the memory of rank {} is broken: what it says it has read can't be", peer.rank),
           peer.rank);
    } else if (state != BoxState::kOpen && peer.reader.empty()) {
      if (state == BoxState::kLeft) {
        peer.over = true;
      } else {
        // It may have learned sooner than this rank that another one was lost: it is not to blame.
        fail(peer, fmt::format("rank {} gave the generation up", peer.rank), -1);
      }
    }
  }
  return any;
}

bool Messages::pending() const {
  if (stopped()) return false;
  for (const auto& peer : peers_) {
    if (peer == nullptr || peer->over) continue;
    if (!peer->reader.empty() || peer->complained) return true;
    if (peer->box.state.load(std::memory_order_seq_cst) != static_cast<uint32_t>(BoxState::kOpen))
      return true;
    if (peer->keeps && peer->out_ring.starved.value.load(std::memory_order_seq_cst) == 0) return true;
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
  }
}

void Messages::stop(BoxState last) {
  own_.state.store(static_cast<uint32_t>(last), std::memory_order_seq_cst);
  stopped_ = true;
  sleeper_.rouse(own_.bells.message, kClosed);
  for (const auto& peer : peers_) {
    if (peer != nullptr) ring(peer->box.bells.message);
  }
}

}  // namespace hvd::local

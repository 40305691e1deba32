// The fast way: ranks that repeat a small call meet on the board (backend/board.h), without messages.
//
// Rank 0 grants a slot to a call that all ranks have made twice in a row by messages, each of them as one that waits at
// once; the grant travels with the second outcome. From then on whoever makes the very same call leaves its data in
// the slot, and all who have arrived have met. Whoever does anything else under that name (another shape, another
// word, an operation to wait for later), or has waited for a moment in vain, closes the slot: all who have arrived or
// will then make that call by messages, where differences, time-outs, losses and late ranks are dealt with as ever.
// The word of its slot decides between both for all ranks alike.
//
// Contract 1: every rank that meets has the word of the grant, which rank 0 had heard before. If all have begun the
// same number of checks, that word is proposed for the next one, by every rank to itself and by rank 0 to those
// who ask.
#include <algorithm>

#include "base/process.h"
#include "collective/engine.h"
#include "collective/validation.h"
#include "numeric/reduce.h"

namespace hvd::collective {

namespace {
constexpr Duration kLeastTimeout = std::chrono::milliseconds(100);  // shorter ones are the matcher's
constexpr size_t kMostOnStack = 16;                                 // ranks
constexpr int kLooks = 400, kFewLooks = 8;                          // before giving way
constexpr uint32_t kTry = 64;                                       // meetings
}  // namespace

/// Under the lock, once the backend is connected.
void Engine::take_board() {
  board_ = instance_.board();
  if (board_ == nullptr) return;
  process_ = current_process();
  if (coordinator()) matcher_.use_board();
}

bool Engine::meeting(const std::string& name) const {
  if (repeated_.empty()) return false;
  const auto it = repeated_.find(name);
  return it != repeated_.end() && it->second.busy;
}

/// This rank makes its next call of that name by a message, and so does everybody. Under the lock.
void Engine::leave_board(const std::string& name) {
  if (repeated_.empty()) return;
  const auto it = repeated_.find(name);
  if (it == repeated_.end()) return;
  const Repeated& mine = it->second;
  backend::Board::Meeting next{mine.grant.slot, mine.grant.number, mine.round + 1};
  board_->close(next);
  repeated_.erase(it);
}

/// Under the lock.
void Engine::granted(const Operation& op, const Grant& grant) {
  if (board_ == nullptr) return;
  repeated_.insert_or_assign(op.submission.name, Repeated{op.call, grant});
}

std::optional<Engine::Met> Engine::arrive(Submission& s) {
  const Row& row = row_of(s.kind);
  if (board_ == nullptr || row.exchange == nullptr || !s.members.empty() || s.timeout < kLeastTimeout)
    return {};
  if (is_on(config_.timeline) || current_process() != process_) return {};
  if (!collective::check(s, config_.rank, size(), instance_).ok()) return {};
  Met met;
  {
    const Lock lock(mutex_);
    if (down() != nullptr || finished_) return {};
    s.meets = true;
    const auto it = repeated_.find(s.name);
    if (it == repeated_.end() || it->second.busy) return {};
    Repeated& mine = it->second;
    const uint64_t word = config_.word ? config_.word() : 0;
    if (word != mine.grant.word || !mine.call->describes(s, 0)) return {};  // submit leaves the board
    mine.busy = true;
    met.meeting = {mine.grant.slot, mine.grant.number, ++mine.round};
    met.word = word;
    met.ticket = next_ticket_++;
    met.checks = checks_.begun();
    checks_.called(met.ticket);
  }
  met.name = s.name;
  if (row.travels == Travel::kEverybodys || (row.travels == Travel::kRoots && s.root == config_.rank)) {
    fill(s, board_->room(met.meeting));
  }
  board_->arrive(met.meeting, met.checks);
  return met;
}

std::optional<Status> Engine::conclude(Met& met, Meeting state, Submission& s) {
  bool together = state == Meeting::kMet;  // between the same two checks
  if (state == Meeting::kMet) {
    const Row& row = row_of(s.kind);
    const uint8_t* few[kMostOnStack];
    std::vector<const uint8_t*> many;
    const uint8_t** data = few;
    if (board_->size() > kMostOnStack) {
      many.resize(board_->size());
      data = many.data();
    }
    for (size_t r = 0; r < board_->size(); ++r) {
      data[r] = board_->data(r, met.meeting);
      together = together && board_->checks(r, met.meeting) == met.checks;
    }
    row.exchange(s, config_.rank, {data, board_->size()});
    if (row.reduces && s.postscale != 1) {
      for (const Tensor& t : s.outputs)
        scale(t.dtype, t.data, static_cast<size_t>(t.elements()), s.postscale);
    }
  }
  Lock lock(mutex_);
  checks_.answered(met.ticket);
  if (together) checks_.learned({met.checks + 1, met.word});
  const auto it = repeated_.find(met.name);
  it->second.busy = false;
  if (state != Meeting::kMet) return {};  // submit leaves the board
  if (together && coordinator() && matcher_.met(met.checks, met.word)) {
    collect();
    drain(lock);
  }
  return Status();
}

std::optional<Status> Engine::meet(Submission& submission) {
  std::optional<Met> met = arrive(submission);
  if (!met) return {};
  Meeting state = look(*met);
  if (state == Meeting::kOpen) {
    // With a processor each, the others come while this rank looks. On one that it shares with them they come only when it
    // gives way; which of both it is can change, and is tried now and then.
    const bool tries = waits_.fetch_add(1, std::memory_order_relaxed) % kTry == 0;
    const int most = board_->crowded() ? 0 : tries ? kLooks : looks_.load(std::memory_order_relaxed);
    int looks = 0;
    for (; state == Meeting::kOpen && looks < most; ++looks) state = look(*met);
    looks_.store(state == Meeting::kOpen ? kFewLooks : kLooks, std::memory_order_relaxed);
    for (local::Spin spin(true, patience_); state == Meeting::kOpen && spin.again();) state = look(*met);
  }
  if (state == Meeting::kOpen) state = close(*met);
  return conclude(*met, state, submission);
}

}  // namespace hvd::collective

// The fast way: ranks that repeat a small call meet on the board (backend/board.h), without messages.
//
// Rank 0 grants a slot to a call that all ranks have made twice in a row by messages, each of them as one
// that waits at once; the grant travels with the second outcome. From then on whoever makes the very same
// call leaves its data in the slot, and all who have arrived have met. Whoever does anything else under that
// name (another shape, another word, an operation to wait for later), or has waited for a moment in vain,
// closes the slot: all who have arrived or will then make that call by messages, where differences,
// time-outs, losses and late ranks are dealt with as ever. The word of its slot decides between both for all
// ranks alike.
//
// A tensor that is too large for the slot moves in the backend once all have met. Its place in the order of
// operations is fixed by rank 0 as it arrives: it leaves the number in its note. A rank arrives only when
// none of its operations is under way; while it waits it closes the slot before it begins another, and runs
// no other before this one. So whatever got a lower number is over on every rank that is part of it, and
// whatever gets a higher one comes later on all.
//
// Contract 1: every rank that meets has the word of the grant, which rank 0 had heard before. If all have
// begun the same number of checks, that word is proposed for the next one, by every rank to itself and by
// rank 0 to those who ask. Where nothing was called between two checks they meet for the second one itself:
// with the grant's word on every rank, that is the maximum.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/internal_status.h"
#include "base/process.h"
#include "collective/batch.h"
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
  takes_parts_ = carrier_.takes_parts();
  board_ = carrier_.board();
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
  const bool check = is_question(s);
  if (board_ == nullptr || !(check || row.exchange != nullptr)) return {};
  if (!s.members.empty() || s.timeout < kLeastTimeout) return {};
  if (is_on(config_.timeline) || current_process() != process_) return {};
  if (!collective::check(s, config_.rank, size(), instance_).ok()) return {};
  Met met;
  met.name = s.name;
  {
    const Lock lock(mutex_);
    if (down() != nullptr || finished_) return {};
    if (check && !checks_.idle()) return {};  // others may know the answer
    s.meets = true;
    const auto it = repeated_.find(s.name);
    if (it == repeated_.end() || it->second.busy) return {};
    Repeated& mine = it->second;
    const uint64_t word = config_.word ? config_.word() : 0;
    if (word != mine.grant.word || !mine.call->describes(s, 0)) return {};  // submit leaves the board
    met.runs = runs_after_meeting(*mine.call, mine.grant.slot);
    if (met.runs && (!ops_.empty() || held_)) return {};
    met.word = word;
    met.ticket = next_ticket_++;
    met.checks = checks_.begun();
    met.check = check;
    if (check) {
      --met.checks;  // it is what is asked for
    } else {
      checks_.called(met.ticket);
    }
    met.meeting = {mine.grant.slot, mine.grant.number, mine.round + 1};
    if (met.runs && coordinator()) {
      const uint64_t sequence = matcher_.reserve(mine.call->specs.size());
      std::memcpy(board_->room(met.meeting), &sequence, sizeof sequence);
    }
    // Last, as what fails before is no arrival.
    ++mine.round;
    mine.busy = true;
    if (met.runs) held_ = met.meeting;
  }
  if (met.runs) {
    // Rank 0's number alone.
  } else if (row.travels == Travel::kEverybodys ||
             (row.travels == Travel::kRoots && s.root == config_.rank)) {
    fill(s, board_->room(met.meeting));
  }
  board_->arrive(met.meeting, met.checks);
  return met;
}

/// Under the lock: what is not run before the meeting is over.
bool Engine::awaits_meeting(const Work& work) const {
  return held_ && work.type == Work::Type::kOutcome && work.rank == config_.rank &&
         work.outcome->sequence != 0;
}

Engine::Concluded Engine::run_together(Met& met, Submission& s) {
  Outcome outcome;
  std::memcpy(&outcome.sequence, board_->data(0, met.meeting), sizeof outcome.sequence);
  auto op = std::make_shared<Operation>(std::move(s));
  op->engine = weak_from_this();
  op->ticket = met.ticket;
  op->checks = met.checks;
  op->epoch = met.word;
  op->in_backend = true;
  auto batch = std::make_unique<Batch>(std::vector<OperationPtr>{op}, true, takes_parts_);
  Lock lock(mutex_);
  if (down() != nullptr) return {*down(), nullptr};
  if (outcome.sequence <= last_sequence_) {
    lock.unlock();
    Status status(HVD_INTERNAL, fmt::format("{} '{}': its number {} does not grow",
                                            kind_name(op->submission.kind), met.name, outcome.sequence));
    break_generation(status, true);
    return {stamped(std::move(status)), nullptr};
  }
  last_sequence_ = outcome.sequence;
  op->call = repeated_.find(met.name)->second.call;
  keys_.insert(op->call->key);
  ops_.emplace(op->ticket, op);
  ++in_backend_;
  if (coordinator()) matcher_.runs();
  lock.unlock();
  carrier_.lends(true);
  run(std::move(batch), outcome);
  carrier_.lends(false);
  return {Status(), std::move(op)};
}

std::optional<Engine::Concluded> Engine::conclude(Met& met, Meeting state, Submission& s) {
  bool together = state == Meeting::kMet;  // between the same two checks
  Concluded concluded;
  try {
    if (state == Meeting::kMet && met.runs) {
      for (size_t r = 0; r < board_->size(); ++r)
        together = together && board_->checks(r, met.meeting) == met.checks;
      concluded = run_together(met, s);
    } else if (state == Meeting::kMet) {
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
      if (row.exchange != nullptr) row.exchange(s, config_.rank, {data, board_->size()});
      if (row.reduces && s.postscale != 1) {
        for (const Tensor& t : s.outputs)
          scale(t.dtype, t.data, static_cast<size_t>(t.elements()), s.postscale);
      }
    }
  } catch (const std::exception& error) {  // the others count on this rank's part
    stuck(error);
    concluded.status = stamped(internal_status(error));
  }
  try {
    Lock lock(mutex_);
    repeated_.find(met.name)->second.busy = false;
    if (met.runs) held_.reset();
    if (!met.check) checks_.answered(met.ticket);
    if (together) checks_.learned({met.checks + 1, met.word});
    if (state == Meeting::kMet && together && coordinator() && matcher_.met(met.checks, met.word)) collect();
    drain(lock);
  } catch (const std::exception& error) { stuck(error); }
  if (state != Meeting::kMet || (met.check && !together)) return {};  // submit leaves the board
  concluded.word = met.word;
  return concluded;
}

std::optional<Engine::Concluded> Engine::meet(Submission& submission) {
  std::optional<Met> met = arrive(submission);
  if (!met) return {};
  Meeting state = look(*met);
  if (state == Meeting::kOpen) {
    // With a processor each, the others come while this rank looks. On one that it shares with them they come
    // only when it gives way; which of both it is can change, and is tried now and then.
    const bool tries = waits_.fetch_add(1, std::memory_order_relaxed) % kTry == 0;
    const int most = board_->crowded() ? 0 : tries ? kLooks : looks_.load(std::memory_order_relaxed);
    int looks = 0;
    for (; state == Meeting::kOpen && looks < most; ++looks) state = look(*met);
    looks_.store(state == Meeting::kOpen ? kFewLooks : kLooks, std::memory_order_relaxed);
    local::Spin spin(true, patience_, Time::max(), board_->placement());
    while (state == Meeting::kOpen && spin.again()) state = look(*met);
  }
  if (state == Meeting::kOpen) state = close(*met);
  return conclude(*met, state, submission);
}

Status Engine::check(Duration timeout, uint64_t* ret_word) {
  bool known = false;
  if (Status status = begin_check(ret_word, &known); known || !status.ok()) return status;
  Submission asked = question(timeout);
  if (const auto met = meet(asked)) {
    *ret_word = met->word;
    return met->status;
  }
  return ask(std::move(asked), ret_word);
}

Status Engine::begin_check(uint64_t* ret_word, bool* ret_known) {
  static const std::string name(kCheckName);
  const Lock lock(mutex_);
  Status status = obstacle(Kind::kAgree, name, keys_.contains(name) || meeting(name));
  *ret_known = status.ok() && checks_.begin(ret_word);
  return status;
}

Submission Engine::question(Duration timeout) {
  Submission question;
  question.name = kCheckName;
  question.kind = Kind::kAgree;
  question.timeout = timeout;
  return question;
}

}  // namespace hvd::collective

// Collects calls by name and decides about those that are complete.
#include "collective/matcher.h"

#include <fmt/format.h>

#include <algorithm>

#include "backend/board.h"
#include "collective/pending.h"

namespace hvd::collective {

namespace {
constexpr size_t kSpare = 64;

std::string question_key(uint64_t check) { return std::string(kCheckName) + '\0' + std::to_string(check); }
}  // namespace

std::string key_of(const Signature& call, uint64_t checks) {
  return is_question(call) ? question_key(checks + 1) : call.key;
}

std::shared_ptr<Outcome> failed_outcome(hvd_status code, std::string message, int32_t rank) {
  auto outcome = std::make_shared<Outcome>();
  outcome->status = Status(code, std::move(message));
  outcome->status.rank = rank;
  return outcome;
}

Matcher::Matcher(MatcherConfig config)
    : config_(std::move(config)),
      fusion_(config_.fusion_threshold),
      shares_(hosts_.size()),
      finished_(hosts_.size(), false),
      joined_(hosts_.size(), false),
      late_(hosts_.size()) {}

Matcher::~Matcher() = default;

// ---- Calls --------------------------------------------------------------------------------------

void Matcher::request(int32_t rank, Request request, Time now) {
  if (finished_[static_cast<size_t>(rank)]) {
    Action& refused = actions_.emplace_back();
    refused.type = Action::Type::kRefused;
    refused.rank = rank;
    refused.line = fmt::format("{} has finished and yet calls '{}': ignored", describe_ranks({rank}, hosts_),
                               request.call->name);
    return;
  }
  if (exceeds(rank)) return;
  agreement_.heard(request.epoch);
  if (is_question(*request.call)) {
    if (!answer_question(rank, request)) {
      arrive(question_key(request.checks + 1), rank, std::move(request), now);
    }
  } else {
    const SignaturePtr call = request.call;  // its key
    arrive(call->key, rank, std::move(request), now);
  }
  if (joined_count_ > 0) interrupt_joined();
  start_ready();
}

Matcher::PendingPtr Matcher::fresh(Time now) {
  PendingPtr pending;
  if (spare_.empty()) {
    pending = std::make_unique<Pending>();
    pending->calls.resize(hosts_.size());
  } else {
    pending = std::move(spare_.back());
    spare_.pop_back();
  }
  pending->since = now;
  if (config_.stall_warning > Duration::zero()) {
    pending->stall_step = config_.stall_warning;
    pending->stall_at = now + config_.stall_warning;
  }
  return pending;
}

void Matcher::arrive(const std::string& key, int32_t rank, Request&& request, Time now) {
  if (answer_late(rank, request)) return;
  const bool join = row_of(request.call->kind).joins;
  if (join && interrupted_ != nullptr) {
    answer(rank, request.ticket, interrupted_);
    joins(rank);
    return;
  }
  auto it = pending_.find(key);
  if (it == pending_.end()) {
    it = pending_.emplace(key, fresh(now)).first;
    it->second->key = key;
    it->second->opened_by = rank;
    shares_[static_cast<size_t>(rank)].bytes += entry_weight(key, hosts_.size());
  }
  Pending& pending = *it->second;
  auto& call = pending.calls[static_cast<size_t>(rank)];
  const Signature& made = *request.call;
  // A rank calls a name again before it was answered only if it has given the earlier call up.
  pending.require(static_cast<size_t>(rank));
  Share& share = shares_[static_cast<size_t>(rank)];
  if (call.here != 0) {
    share.bytes -= weight(pending.at(rank));
  } else {
    call.here = 1;
    call.at = static_cast<uint32_t>(pending.requests.size());
    pending.requests.emplace_back();
    ++pending.here;
    ++share.calls;
  }
  share.bytes += weight(request);
  // Ranks that have joined take no part but in joins, unless they call all the same.
  const auto require = [&](size_t r) {
    if (join || !joined_[r]) pending.require(r);
  };
  if (!made.members.empty()) {
    for (const int32_t r : made.members) require(static_cast<size_t>(r));
  } else if (pending.required < hosts_.size()) {
    for (size_t r = 0; r < hosts_.size(); ++r) require(r);
  }
  pending.deadline = std::min(pending.deadline, now + made.timeout);
  if (pending.first == nullptr) pending.first = request.call;
  const bool differs = pending.first != request.call && !agrees(*pending.first, made);
  if (differs != (call.differs != 0)) pending.differ += differs ? size_t{1} : size_t(-1);
  call.differs = differs ? 1 : 0;
  pending.at(rank) = std::move(request);
  if (join) joins(rank);
  it = pending_.find(key);
  if (it == pending_.end()) return;
  if (it->second->complete()) {
    complete(it);
  } else if (!fail_if_finished(it)) {
    wake_ = std::min(wake_, it->second->due());
  }
}

/// All who have to call it have.
void Matcher::complete(Table::iterator it) {
  PendingPtr pending = taken(it);
  propose(*pending);
  Verdict verdict = decide(*pending);
  grant(*pending, verdict);
  if (verdict.operations == 0) {
    conclude(*pending, verdict);
    if (spare_.size() < kSpare) {
      const size_t size = pending->calls.size();
      auto calls = std::move(pending->calls);
      auto requests = std::move(pending->requests);
      calls.assign(size, {});
      requests.clear();
      *pending = Pending();
      pending->calls = std::move(calls);
      pending->requests = std::move(requests);
      spare_.push_back(std::move(pending));
    }
    return;
  }
  Fusion::Item item;
  item.id = next_ready_++;
  item.call = pending->first;
  item.participants = verdict.participants;
  item.bytes = pending->first->payload;
  item.mine = item.participants.front() == 0;
  item.alone = !fusable(*pending, item.participants);
  if (item.call->on_device() && !item.alone) {
    for (const int32_t r : item.participants) item.places.push_back(pending->at(r).call->place);
    item.alone = std::find(item.places.begin(), item.places.end(), 0U) != item.places.end();
  }
  ready_.emplace(item.id, Ready{std::move(pending), std::move(verdict)});
  fusion_.add(std::move(item));
}

/// Contract 1: see agreement.h. Ranks that have joined call no checks.
void Matcher::propose(const Pending& pending) {
  const Signature& first = *pending.first;
  uint64_t checks = 0;
  if (row_of(first.kind).joins) {
    for (const Request& request : pending.requests) checks = std::max(checks, request.checks);
  } else {
    if (is_question(first)) return;
    bool any = false;
    for (size_t r = 0; r < pending.calls.size(); ++r) {
      if (pending.calls[r].here == 0) {
        if (joined_[r]) continue;
        return;
      }
      const Request& request = pending.at(static_cast<int32_t>(r));
      if (!request.call->of_all(hosts_.size())) return;
      if (any && request.checks != checks) return;
      checks = request.checks;
      any = true;
    }
  }
  agreement_.propose(checks);
  answer_questions(checks + 1);
}

/// Whoever has asked meanwhile waits for a proposal.
bool Matcher::answer_questions(uint64_t check) {
  if (pending_.empty()) return false;
  const auto asked = pending_.find(question_key(check));
  if (asked == pending_.end()) return false;
  const Proposal* proposal = agreement_.settle(check);
  if (proposal == nullptr) return false;
  auto outcome = std::make_shared<Outcome>();
  outcome->word = proposal->word;
  fail(asked, std::move(outcome), false);
  return true;
}

bool Matcher::met(uint64_t checks, uint64_t word) {
  agreement_.propose(checks, word);
  return answer_questions(checks + 1);
}

/// What all ranks have called in agreement, would have met for, and could have met for.
void Matcher::grant(const Pending& pending, Verdict& verdict) {
  const Signature& call = *pending.first;
  if (!board_ || !verdict.outcome->status.ok()) return;
  if (row_of(call.kind).exchange == nullptr && !is_question(call)) return;
  if (verdict.participants.size() != hosts_.size() || hosts_.size() < 2 || !call.members.empty()) return;
  if (call.on_device() || agreement_.pinned()) return;
  if (verdict.operations > 0 && !runs_after_meeting(call, 0)) return;  // no data is to travel on the board
  const uint64_t word = pending.at(0).epoch;
  for (const Request& made : pending.requests) {
    if (!made.meets || made.epoch != word) return;
  }
  const Grant grant = grants_.agreed(pending.first, word);
  if (grant.number == 0) return;
  verdict.outcome->grant = grant;
  for (const auto& own : verdict.by_rank) {
    if (own != nullptr) own->grant = grant;
  }
  Action& action = actions_.emplace_back();
  action.type = Action::Type::kGrant;
  action.grant = grant;
}

bool Matcher::answer_question(int32_t rank, const Request& request) {
  const Proposal* proposal = agreement_.settle(request.checks + 1);
  if (proposal == nullptr) return false;
  auto outcome = std::make_shared<Outcome>();
  outcome->word = proposal->word;
  answer(rank, request.ticket, std::move(outcome));
  return true;
}

/// The answer to a call whose operation has ended without this rank. Each answers one call: the n-th call
/// of a name by one rank belongs to the n-th call of it by the others.
bool Matcher::answer_late(int32_t rank, const Request& request) {
  Late& late = late_[static_cast<size_t>(rank)];
  auto& answers = late.answers;
  if (answers.empty()) return false;
  const std::string key = key_of(*request.call, request.checks);
  const auto it =
      std::find_if(answers.begin(), answers.end(), [&](const Tombstone& t) { return t.key == key; });
  if (it == answers.end()) return false;
  late.bytes -= weight(*it);
  answer(rank, request.ticket, std::move(it->outcome));
  answers.erase(it);
  return true;
}

// ---- Join ---------------------------------------------------------------------------------------

void Matcher::joins(int32_t rank) {
  last_joined_ = rank;
  if (joined_[static_cast<size_t>(rank)]) return;
  joined_[static_cast<size_t>(rank)] = true;
  ++joined_count_;
  std::vector<std::string> keys;  // in their order, not the table's, so that a history can be replayed
  for (const auto& [key, pending] : pending_) {
    if (!row_of(pending->first->kind).joins && pending->calls[static_cast<size_t>(rank)].required != 0 &&
        pending->calls[static_cast<size_t>(rank)].here == 0) {
      keys.push_back(key);
    }
  }
  std::sort(keys.begin(), keys.end());
  for (const auto& key : keys) {
    const auto it = pending_.find(key);
    if (it == pending_.end()) continue;
    it->second->excuse(static_cast<size_t>(rank));
    if (it->second->complete()) complete(it);
  }
}

/// A check that all others will make finds new hosts: whoever has joined calls none, and learns it so.
void Matcher::interrupt_joined() {
  if (interrupted_ != nullptr || !config_.interrupts) return;
  Status status = config_.interrupts(agreement_.word());
  if (status.ok()) return;
  agreement_.pin();
  auto outcome = std::make_shared<Outcome>();
  outcome->status = std::move(status);
  interrupted_ = std::move(outcome);
  std::vector<std::string> keys;
  for (const auto& [key, pending] : pending_) {
    if (row_of(pending->first->kind).joins) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  for (const auto& key : keys) fail(pending_.find(key), interrupted_, false);
}

// ---- Answers ------------------------------------------------------------------------------------

void Matcher::answer(int32_t rank, uint64_t ticket, OutcomePtr outcome) {
  Action& action = actions_.emplace_back();
  action.rank = rank;
  action.ticket = ticket;
  action.outcome = std::move(outcome);
  action.proposal = agreement_.latest();
}

/// Tells all who called. Rank 0 comes last: it starts on its own part when the others know theirs.
void Matcher::conclude(const Pending& pending, const Verdict& verdict) {
  const size_t size = pending.calls.size();
  for (size_t i = 1; i <= size; ++i) {
    const auto rank = static_cast<int32_t>(i % size);
    if (pending.calls[i % size].here != 0) answer(rank, pending.at(rank).ticket, verdict.of(rank));
  }
}

/// Ends an operation that not all have called, with one outcome for all.
void Matcher::fail(Table::iterator it, OutcomePtr outcome, bool remember_missing) {
  const PendingPtr pending = taken(it);
  const size_t size = pending->calls.size();
  const bool leaves_join = row_of(pending->first->kind).joins && outcome != interrupted_;
  for (size_t i = 1; i <= size; ++i) {
    const size_t rank = i % size;
    const auto& call = pending->calls[rank];
    if (call.here != 0) {
      answer(static_cast<int32_t>(rank), pending->at(static_cast<int32_t>(rank)).ticket, outcome);
      if (leaves_join && joined_[rank]) {
        joined_[rank] = false;
        --joined_count_;
      }
    } else if (call.required != 0 && remember_missing && !finished_[rank]) {
      remember(late_[rank], {pending->key, outcome});
    }
  }
}

/// Gives everybody what the backend can take now.
void Matcher::start_ready() {
  for (Fusion::Batch batch = fusion_.next(); !batch.empty(); batch = fusion_.next()) {
    std::vector<Ready> parts;
    for (const uint64_t id : batch) parts.push_back(std::move(ready_.extract(id).mapped()));
    const uint64_t sequence = sequence_;
    sequence_ += batch.size() > 1 ? 1 : parts[0].verdict.operations;
    for (auto& part : parts) {
      part.verdict.outcome->sequence = sequence;
      for (const auto& own : part.verdict.by_rank) {
        if (own != nullptr) own->sequence = sequence;
      }
    }
    if (parts.size() == 1) {
      conclude(*parts[0].pending, parts[0].verdict);
      continue;
    }
    const auto& ranks = parts[0].verdict.participants;
    for (size_t i = 1; i <= ranks.size(); ++i) {
      const int32_t rank = ranks[i % ranks.size()];
      answer(rank, parts[0].pending->at(rank).ticket, parts[0].verdict.outcome);
      for (size_t p = 1; p < parts.size(); ++p) {
        actions_.back().more.push_back(parts[p].pending->at(rank).ticket);
      }
    }
  }
}

void Matcher::ran() {
  fusion_.finished();
  start_ready();
}

}  // namespace hvd::collective

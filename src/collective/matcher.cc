#include "collective/matcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/dtype.h"

namespace hvd::collective {

namespace {
constexpr size_t kMaxTombstones = 1024;  // per rank; the oldest is forgotten
constexpr size_t kMaxNamesTold = 3;      // per rank, in a message about a deadlock

OutcomePtr failure(hvd_status code, std::string message, int32_t rank = -1) {
  auto outcome = std::make_shared<Outcome>();
  outcome->status = Status(code, std::move(message));
  outcome->status.rank = rank;
  return outcome;
}
}  // namespace

struct Matcher::Pending {
  struct Call {
    bool required = false;  // this rank has to call
    bool here = false;      // it has
    uint64_t ticket = 0;
    int64_t rows = 0;                  // allgather
    std::unique_ptr<Request> differs;  // its call, where it disagrees with `first`
  };
  Request first;            // the call that came first: all others are compared with it
  std::vector<Call> calls;  // by rank
  size_t required = 0, here = 0;
  uint64_t word = 0;
  uint64_t object_size = 0;
  std::vector<uint8_t> object;
  Time since;
  Time deadline = Time::max();
  Time stall_at = Time::max();
  Duration stall_step{0};
  OutcomePtr deadlock;  // set once every rank was seen waiting for another name

  bool complete() const { return here == required; }
  Time due() const { return std::min(deadline, stall_at); }
  std::vector<int32_t> missing() const {
    std::vector<int32_t> ranks;
    for (size_t r = 0; r < calls.size(); ++r) {
      if (calls[r].required && !calls[r].here) ranks.push_back(static_cast<int32_t>(r));
    }
    return ranks;
  }
  /// Who has called, and how they differ; "" if they agree.
  std::string mismatch(const std::vector<std::string>& hosts) const {
    if (std::none_of(calls.begin(), calls.end(), [](const Call& call) { return call.differs != nullptr; }))
      return "";
    std::vector<const Request*> made(calls.size(), nullptr);
    for (size_t r = 0; r < calls.size(); ++r) {
      if (calls[r].here) made[r] = calls[r].differs != nullptr ? calls[r].differs.get() : &first;
    }
    return describe_mismatch(made, hosts);
  }
  void require(size_t rank) {
    if (calls[rank].required) return;
    calls[rank].required = true;
    ++required;
  }
};

Matcher::Matcher(std::vector<std::string> hosts, Duration stall_warning)
    : hosts_(std::move(hosts)),
      stall_warning_(stall_warning),
      finished_(hosts_.size(), false),
      tombstones_(hosts_.size()) {}

Matcher::~Matcher() = default;

void Matcher::request(int32_t rank, Request request, Time now) {
  if (finished_[static_cast<size_t>(rank)]) {
    Action log;
    log.type = Action::Type::kLog;
    log.line = fmt::format("{} has finished and yet calls '{}': ignored", describe_ranks({rank}, hosts_),
                           request.name);
    actions_.push_back(std::move(log));
    return;
  }
  if (answer_late(rank, request)) return;
  auto [it, fresh] = pending_.try_emplace(request.name);
  if (fresh) {
    it->second = std::make_unique<Pending>();
    it->second->calls.resize(hosts_.size());
    it->second->since = now;
    if (stall_warning_ > Duration::zero()) {
      it->second->stall_step = stall_warning_;
      it->second->stall_at = now + stall_warning_;
    }
  }
  arrive(*it->second, rank, std::move(request), now);
  if (it->second->complete()) {
    conclude(it, decide(*it->second), false);
  } else if (!fail_if_finished(it)) {
    wake_ = std::min(wake_, it->second->due());
  }
}

void Matcher::arrive(Pending& pending, int32_t rank, Request&& request, Time now) {
  auto& call = pending.calls[static_cast<size_t>(rank)];
  // A rank calls a name again before it was answered only if it has given the earlier call up.
  if (!call.here) ++pending.here;
  call.here = true;
  call.ticket = request.ticket;
  if (!request.members.empty()) {
    for (const int32_t r : request.members) pending.require(static_cast<size_t>(r));
  } else if (pending.required < hosts_.size()) {
    for (size_t r = 0; r < hosts_.size(); ++r) pending.require(r);
  }
  pending.deadline = std::min(pending.deadline, now + std::min(request.timeout, kMaxTimeout));
  pending.word = std::max(pending.word, request.word);
  if (request.kind == Kind::kAllgather) call.rows = request.specs[0].shape[0];
  if (request.kind == Kind::kBroadcastObject && rank == request.root) {
    pending.object_size = request.object_size;
    pending.object = std::move(request.object);
  }
  if (pending.first.name.empty()) {
    pending.first = std::move(request);
  } else if (agrees(pending.first, request)) {
    call.differs.reset();
  } else {
    call.differs = std::make_unique<Request>(std::move(request));
  }
}

/// The answer to a call whose operation has ended without this rank. Each answers one call: the n-th call
/// of a name by one rank belongs to the n-th call of it by the others.
bool Matcher::answer_late(int32_t rank, const Request& request) {
  auto& late = tombstones_[static_cast<size_t>(rank)];
  if (late.empty()) return false;
  const auto it =
      std::find_if(late.begin(), late.end(), [&](const Tombstone& t) { return t.name == request.name; });
  if (it == late.end()) return false;
  Action action;
  action.rank = rank;
  action.ticket = request.ticket;
  action.outcome = std::move(it->outcome);
  actions_.push_back(std::move(action));
  late.erase(it);
  return true;
}

bool Matcher::fail_if_finished(Table::iterator it) {
  const Pending& pending = *it->second;
  for (size_t r = 0; r < hosts_.size(); ++r) {
    if (!finished_[r] || !pending.calls[r].required || pending.calls[r].here) continue;
    const auto rank = static_cast<int32_t>(r);
    conclude(it,
             failure(HVD_PEER_LOST,
                     fmt::format("{} has finished and will not call '{}'", describe_ranks({rank}, hosts_),
                                 it->first),
                     rank),
             true);
    return true;
  }
  return false;
}

void Matcher::finish(int32_t rank) {
  if (finished_[static_cast<size_t>(rank)]) return;
  finished_[static_cast<size_t>(rank)] = true;
  tombstones_[static_cast<size_t>(rank)].clear();
  // In the order of names, not of the table, so that a history can be replayed.
  std::vector<std::string> names;
  for (const auto& [name, pending] : pending_) names.push_back(name);
  std::sort(names.begin(), names.end());
  for (const auto& name : names) fail_if_finished(pending_.find(name));
}

/// All have called: the operation runs, or they disagree.
OutcomePtr Matcher::decide(Pending& pending) {
  if (std::string text = pending.mismatch(hosts_); !text.empty())
    return failure(HVD_MISMATCH, std::move(text));
  auto outcome = std::make_shared<Outcome>();
  const Request& request = pending.first;
  uint64_t operations = 0;
  switch (request.kind) {
    case Kind::kAgree: outcome->word = pending.word; break;
    case Kind::kAllreduce:
      if (spec_bytes(request.specs[0].dtype, request.specs[0].shape) > 0) operations = 1;
      break;
    case Kind::kBroadcast: {
      bool any = false;
      for (const auto& spec : request.specs) any = any || spec_bytes(spec.dtype, spec.shape) > 0;
      if (any && pending.required > 1) operations = request.specs.size();  // as many as there can be
      break;
    }
    case Kind::kBroadcastObject:
      outcome->object_size = pending.object_size;
      if (pending.object_size > kInlineObject && hosts_.size() > 1) operations = 1;
      outcome->object = std::move(pending.object);
      break;
    default: break;
    case Kind::kAllgather: {
      std::vector<int64_t> shape = request.specs[0].shape;
      int64_t rows = 0;
      bool fits = true;
      outcome->rows.reserve(hosts_.size());
      for (const auto& call : pending.calls) {
        outcome->rows.push_back(call.rows);
        fits = fits && !__builtin_add_overflow(rows, call.rows, &rows);
      }
      shape[0] = rows;
      const int64_t bytes = fits ? spec_bytes(request.specs[0].dtype, shape) : -1;
      if (bytes < 0) {
        return failure(HVD_INVALID,
                       fmt::format("allgather '{}': the result is larger than memory can be", request.name));
      }
      if (bytes > 0) operations = 1;
      break;
    }
  }
  if (operations > 0) {
    outcome->sequence = sequence_;
    sequence_ += operations;
  }
  return outcome;
}

/// Tells all who called. Rank 0 comes last: it starts on its own part when the others know theirs.
void Matcher::conclude(Table::iterator it, OutcomePtr outcome, bool remember_missing) {
  const std::unique_ptr<Pending> pending = std::move(it->second);
  const std::string name = it->first;
  pending_.erase(it);
  const size_t size = pending->calls.size();
  for (size_t i = 1; i <= size; ++i) {
    const size_t rank = i % size;
    const auto& call = pending->calls[rank];
    if (call.here) {
      Action action;
      action.rank = static_cast<int32_t>(rank);
      action.ticket = call.ticket;
      action.outcome = outcome;
      actions_.push_back(std::move(action));
    } else if (call.required && remember_missing && !finished_[rank]) {
      auto& late = tombstones_[rank];
      if (late.size() == kMaxTombstones) late.pop_front();
      late.push_back({name, outcome});
    }
  }
}

OutcomePtr Matcher::expire(const Pending& pending, Duration waited) {
  if (std::string text = pending.mismatch(hosts_); !text.empty())
    return failure(HVD_MISMATCH, std::move(text));
  if (pending.deadlock != nullptr) return pending.deadlock;
  const auto missing = pending.missing();
  return failure(HVD_TIMEOUT,
                 fmt::format("{} '{}': {} {} not called it within {:g} s", kind_name(pending.first.kind),
                             pending.first.name, describe_ranks(missing, hosts_),
                             missing.size() == 1 ? "has" : "have", to_seconds(waited)),
                 missing.front());
}

/// If every rank waits in some operation while none of them can start, then the names are wrong. Every
/// operation that waits now is told so, at its own time-out if nobody comes until then.
void Matcher::mark_deadlock() {
  std::vector<std::vector<std::string>> names(hosts_.size());
  for (const auto& [name, pending] : pending_) {
    for (size_t r = 0; r < hosts_.size(); ++r) {
      if (pending->calls[r].here) names[r].push_back(name);
    }
  }
  std::string text = "every rank waits, but not for the same operation:";
  for (size_t r = 0; r < hosts_.size(); ++r) {
    if (names[r].empty()) return;
    if (r >= 8) continue;
    std::sort(names[r].begin(), names[r].end());
    text += fmt::format("{} {} in ", r == 0 ? "" : ",", describe_ranks({static_cast<int32_t>(r)}, hosts_));
    for (size_t i = 0; i < std::min(names[r].size(), kMaxNamesTold); ++i) {
      text += fmt::format("{}'{}'", i == 0 ? "" : " and ", names[r][i]);
    }
    if (names[r].size() > kMaxNamesTold) text += fmt::format(" and {} more", names[r].size() - kMaxNamesTold);
  }
  if (hosts_.size() > 8) text += fmt::format(" and {} more ranks", hosts_.size() - 8);
  const OutcomePtr outcome = failure(HVD_MISMATCH, std::move(text));
  for (auto& [name, pending] : pending_) {
    if (pending->deadlock == nullptr) pending->deadlock = outcome;
  }
}

void Matcher::stall(Pending& pending, Time now) {
  const auto missing = pending.missing();
  std::vector<int32_t> waiting;
  for (size_t r = 0; r < pending.calls.size(); ++r) {
    const auto& call = pending.calls[r];
    if (!call.here) continue;
    waiting.push_back(static_cast<int32_t>(r));
    Action action;
    action.type = Action::Type::kStall;
    action.rank = static_cast<int32_t>(r);
    action.ticket = call.ticket;
    action.missing = missing;
    actions_.push_back(std::move(action));
  }
  Action log;
  log.type = Action::Type::kLog;
  log.line =
      fmt::format("{} '{}': {} {} not called it for {:g} s; waiting: {}", kind_name(pending.first.kind),
                  pending.first.name, describe_ranks(missing, hosts_), missing.size() == 1 ? "has" : "have",
                  to_seconds(now - pending.since), describe_ranks(waiting, hosts_));
  actions_.push_back(std::move(log));
  pending.stall_step = std::min(pending.stall_step * 2, kMaxTimeout);
  pending.stall_at = pending.since + pending.stall_step;
  while (pending.stall_at <= now) {
    pending.stall_step = std::min(pending.stall_step * 2, kMaxTimeout);
    pending.stall_at = pending.since + pending.stall_step;
  }
}

void Matcher::tick(Time now) {
  std::vector<std::string> expired;
  for (const auto& [name, pending] : pending_) {
    if (pending->deadline <= now) expired.push_back(name);
  }
  if (!expired.empty()) mark_deadlock();
  std::sort(expired.begin(), expired.end());
  for (const auto& name : expired) {
    const auto it = pending_.find(name);
    const Pending& pending = *it->second;
    conclude(it, expire(pending, pending.deadline - pending.since), true);
  }
  wake_ = Time::max();
  for (auto& [name, pending] : pending_) {
    if (pending->stall_at <= now) stall(*pending, now);
    wake_ = std::min(wake_, pending->due());
  }
}

std::vector<int32_t> Matcher::missing(const std::string& name) const {
  const auto it = pending_.find(name);
  return it == pending_.end() ? std::vector<int32_t>{} : it->second->missing();
}

}  // namespace hvd::collective

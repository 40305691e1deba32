// Calls that wait for ranks that have finished, or do not come: failures, time-outs, reports.
#include <fmt/format.h>

#include <algorithm>

#include "collective/matcher.h"
#include "collective/pending.h"

namespace hvd::collective {

namespace {
constexpr size_t kMaxNamesTold = 3;  // per rank, in a message about a deadlock
}  // namespace

bool Matcher::fail_if_finished(Table::iterator it) {
  const Pending& pending = *it->second;
  for (size_t r = 0; r < hosts_.size(); ++r) {
    if (!finished_[r] || pending.calls[r].required == 0 || pending.calls[r].here != 0) continue;
    const auto rank = static_cast<int32_t>(r);
    fail(it,
         failed_outcome(HVD_PEER_LOST,
                        fmt::format("{} has finished and will not call '{}'", describe_ranks({rank}, hosts_),
                                    pending.first->name),
                        rank),
         true);
    return true;
  }
  return false;
}

void Matcher::finish(int32_t rank) {
  if (finished_[static_cast<size_t>(rank)]) return;
  finished_[static_cast<size_t>(rank)] = true;
  late_[static_cast<size_t>(rank)] = {};
  // In the order of names, not of the table, so that a history can be replayed.
  std::vector<std::string> keys;
  for (const auto& [key, pending] : pending_) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  for (const auto& key : keys) fail_if_finished(pending_.find(key));
}

OutcomePtr Matcher::expire(const Pending& pending, Duration waited) {
  if (std::string text = pending.mismatch(hosts_); !text.empty())
    return failed_outcome(HVD_MISMATCH, std::move(text));
  if (pending.deadlock != nullptr) return pending.deadlock;
  const auto missing = pending.ranks(false);
  return failed_outcome(
      HVD_TIMEOUT,
      fmt::format("{} '{}': {} {} not called it within {:g} s", kind_name(pending.first->kind),
                  pending.first->name, describe_ranks(missing, hosts_), missing.size() == 1 ? "has" : "have",
                  to_seconds(waited)),
      missing.front());
}

/// If every rank waits in some operation while none of them can start, then the names are wrong. Every
/// operation that waits now fails with that sentence at its own time-out, unless the others come before.
void Matcher::mark_deadlock() {
  std::vector<std::vector<std::string>> names(hosts_.size());
  for (const auto& [key, pending] : pending_) {
    for (size_t r = 0; r < hosts_.size(); ++r) {
      if (pending->calls[r].here != 0) names[r].push_back(pending->first->name);
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
  const OutcomePtr outcome = failed_outcome(HVD_MISMATCH, std::move(text));
  for (auto& [key, pending] : pending_) {
    if (pending->deadlock == nullptr) pending->deadlock = outcome;
  }
}

void Matcher::stall(Pending& pending, Time now) {
  const auto missing = pending.ranks(false);
  const auto waiting = pending.ranks(true);
  for (const int32_t rank : waiting) {
    Action action;
    action.type = Action::Type::kStall;
    action.rank = rank;
    action.ticket = pending.at(rank).ticket;
    action.missing = missing;
    actions_.push_back(std::move(action));
  }
  Action report;
  report.type = Action::Type::kStallReport;
  report.line =
      fmt::format("{} '{}': {} {} not called it for {:g} s; waiting: {}", kind_name(pending.first->kind),
                  pending.first->name, describe_ranks(missing, hosts_), missing.size() == 1 ? "has" : "have",
                  to_seconds(now - pending.since), describe_ranks(waiting, hosts_));
  report.waited = now - pending.since;
  if (!row_of(pending.first->kind).patient) report.missing = missing;
  actions_.push_back(std::move(report));
  pending.stall_step = std::min(pending.stall_step * 2, kMaxTimeout);
  pending.stall_at = pending.since + pending.stall_step;
  while (pending.stall_at <= now) {
    pending.stall_step = std::min(pending.stall_step * 2, kMaxTimeout);
    pending.stall_at = pending.since + pending.stall_step;
  }
}

void Matcher::held_up(Duration time) {
  wake_ = Time::max();
  for (auto& [key, pending] : pending_) {
    pending->since += time;
    if (pending->deadline != Time::max()) pending->deadline += time;
    if (pending->stall_at != Time::max()) pending->stall_at += time;
    wake_ = std::min(wake_, pending->due());
  }
}

void Matcher::tick(Time now) {
  std::vector<std::string> expired;
  for (const auto& [key, pending] : pending_) {
    if (pending->deadline <= now) expired.push_back(key);
  }
  if (!expired.empty()) mark_deadlock();
  std::sort(expired.begin(), expired.end());
  for (const auto& key : expired) {
    const auto it = pending_.find(key);
    const Pending& pending = *it->second;
    fail(it, expire(pending, pending.deadline - pending.since), true);
  }
  wake_ = Time::max();
  for (auto& [key, pending] : pending_) {
    if (pending->stall_at <= now) stall(*pending, now);
    wake_ = std::min(wake_, pending->due());
  }
}

std::vector<int32_t> Matcher::missing(const std::string& key) const {
  const auto it = pending_.find(key);
  return it == pending_.end() ? std::vector<int32_t>{} : it->second->ranks(false);
}

}  // namespace hvd::collective

// The agent's decisions.
#include "agent/agent_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/text.h"

namespace hvd::agent {
namespace {

constexpr Duration kLastReports = std::chrono::seconds(5);  // for the driver to take them
constexpr size_t kPiece = size_t{256} << 10;                // of output in one report
constexpr Duration kMuchTooLate = std::chrono::seconds(1);
constexpr Duration kLastChance = std::chrono::seconds(15);  // for the driver to be reached, and to answer
constexpr Duration kLongestGrace = std::chrono::hours(24);

/// Bytes of memory that a report of output takes; 0 for any other report.
size_t size_of(const Report& report) {
  const auto* output = std::get_if<wire::AgentOutputT>(&report);
  return output == nullptr ? 0 : output->bytes.size() + 64;
}

}  // namespace

AgentCore::AgentCore(CoreConfig config, Time now, std::unique_ptr<Spool> spool)
    : config_(config), alone_since_(now), alone_why_("no driver has answered"), backlog_(std::move(spool)) {}

std::vector<uint64_t> AgentCore::workers() const {
  std::vector<uint64_t> result;
  for (const auto& [id, worker] : workers_) {
    if (!worker.orphan) result.push_back(id);
  }
  return result;
}

std::vector<std::pair<uint64_t, int32_t>> AgentCore::kept() {
  std::set<uint64_t> named;
  for (const auto& [id, worker] : workers_) {
    if (!worker.orphan) named.insert(id);
  }
  const auto name = [&](const Report& report) {
    named.insert(std::visit([](const auto& r) { return r.worker; }, report));
  };
  reports_.for_each(name);
  backlog_.for_each_kept(name);
  std::erase_if(slots_, [&](const auto& s) { return !named.contains(s.first); });
  return {slots_.begin(), slots_.end()};
}

CoreActions AgentCore::connected(bool resumed, uint64_t received, Time now) {
  CoreActions actions;
  if (finished_) return actions;
  online_ = ever_online_ = true;
  if (resumed) {
    reports_.acknowledge(received);
    reports_.for_each([&](const Report& r) { actions.push_back(SendReport{r}); });
    reports_.mark_sent();
  } else {
    // Another driver, or one that has given this agent up: it starts its workers anew.
    orders_.restart();
    reports_.clear();
    backlog_.clear();
    slots_.clear();
    for (auto& [id, worker] : workers_) {
      worker.orphan = true;
      if (worker.running) actions.push_back(StopProcess{id, Duration(0)});
    }
  }
  refill(&actions);
  if (drain_ && ending_.empty())
    actions.push_back(SendDrain{std::max(drain_->by - now, Duration(0)), drain_->reason});
  judge(now, &actions);
  return actions;
}

CoreActions AgentCore::disconnected(const std::string& why, Time now) {
  CoreActions actions;
  if (finished_) return actions;
  if (online_) {
    alone_since_ = now;
    last_chance_.reset();
  }
  online_ = false;
  alone_why_ = why;
  hold_or_not(&actions);
  judge(now, &actions);
  return actions;
}

CoreActions AgentCore::refused(hvd_status code, const std::string& why, Time now) {
  CoreActions actions;
  online_ = false;
  end_all(why, config_.stop_grace, code, now, &actions);
  judge(now, &actions);
  return actions;
}

CoreActions AgentCore::ordered(Order order, Time now) {
  CoreActions actions;
  if (!orders_.take(number_of(order)) || finished_) return actions;
  if (auto* start = std::get_if<wire::AgentStartT>(&order)) {
    const uint64_t id = start->worker;
    if (id == 0 || workers_.contains(id)) {
      throw Error(HVD_INVALID, fmt::format("an order to start worker {}, {}", id,
                                           id == 0 ? "which is nobody" : "which is there"));
    }
    if (!ending_.empty() || drain_) {
      wire::AgentFailedT failed;
      failed.worker = id;
      failed.message = "the agent is ending: " + (ending_.empty() ? drain_->reason : ending_);
      report(std::move(failed), &actions);
    } else {
      workers_[id] = {};
      slots_[id] = start->slot;
      actions.push_back(LaunchWorker{std::move(*start)});
    }
  } else if (const auto* stop = std::get_if<wire::AgentStopT>(&order)) {
    const Duration grace =
        std::clamp<Duration>(milliseconds(std::clamp<int64_t>(stop->grace_ms, 0, int64_t{24} * 3600 * 1000)),
                             Duration(0), kLongestGrace);
    if (const auto found = workers_.find(stop->worker);
        found != workers_.end() && !found->second.orphan && found->second.running) {
      actions.push_back(StopProcess{stop->worker, grace});
    }
  } else if (const auto* watch = std::get_if<wire::AgentWatchT>(&order)) {
    if (workers_.contains(watch->worker)) {
      WatchProcess action{watch->worker, {watch->process}};
      if (watch->life >= 0 && watch->life_token != nullptr) {
        action.claim.life = watch->life;
        action.claim.life_token = wire::to_digest(watch->life_token.get());
      }
      actions.push_back(action);
    }
  } else if (const auto* end = std::get_if<wire::AgentEndT>(&order)) {
    const hvd_status failure = end->try_again ? HVD_UNAVAILABLE : HVD_JOB_FAILED;
    end_all(printable(end->reason), config_.stop_grace, end->success ? HVD_OK : failure, now, &actions);
  }
  judge(now, &actions);
  return actions;
}

CoreActions AgentCore::acknowledged(uint64_t received, Time now) {
  CoreActions actions;
  if (finished_) return actions;
  const size_t before = reports_.size();
  reports_.acknowledge(received);
  // Those that are gone and told are nobody's business any more; now and then is enough.
  if (reports_.empty() && backlog_.empty() && slots_.size() > 2 * workers_.size() + 16) kept();
  // A driver that takes what there is gets all of it, however long that takes.
  if (!ending_.empty() && reports_.size() < before) end_by_ = std::max(end_by_, now + kLastReports);
  refill(&actions);
  judge(now, &actions);
  return actions;
}

void AgentCore::report(Report report, CoreActions* actions) {
  const size_t bytes = size_of(report);
  // Without a driver memory holds so much and the spool the rest.
  const bool room = online_ || bytes == 0 || reports_.bytes() + bytes <= config_.max_kept;
  if (!backlog_.empty() || !room) {
    const bool first = backlog_.empty(), was_full = backlog_.full();
    backlog_.push(std::move(report));
    if (backlog_.full() && !was_full) {
      actions->push_back(AgentNote{true, fmt::format("what workers print waits: {}", backlog_.why())});
    } else if (first) {
      actions->push_back(AgentNote{false, fmt::format("what workers print is kept in {}", backlog_.place())});
    }
    return;
  }
  const Report& kept = reports_.push(std::move(report), bytes);
  if (!online_) return;
  reports_.mark_sent();
  actions->push_back(SendReport{kept});
}

/// The driver has taken something, or has come back: what waited for room follows.
void AgentCore::refill(CoreActions* actions) {
  const uint64_t lost = backlog_.lost();
  while (online_ && !backlog_.empty() && reports_.bytes() <= config_.max_kept) {
    std::optional<Report> next = backlog_.pop();
    if (!next) break;
    const size_t bytes = size_of(*next);
    actions->push_back(SendReport{reports_.push(std::move(*next), bytes)});
    reports_.mark_sent();
  }
  if (backlog_.lost() > lost) {
    actions->push_back(AgentNote{true, fmt::format("{} bytes that workers printed are lost: {}",
                                                   backlog_.lost() - lost, backlog_.why())});
  }
  hold_or_not(actions);
}

/// While there is a driver its pace is the workers'; without one the spool is what fills up.
void AgentCore::hold_or_not(CoreActions* actions) {
  bool hold = backlog_.full();
  if (online_ && !hold) {
    const size_t most = holding_ ? config_.max_kept / 2 : config_.max_kept;
    hold = reports_.bytes() > most || !backlog_.empty();
  }
  if (hold == holding_) return;
  holding_ = hold;
  actions->push_back(HoldOutput{hold});
}

CoreActions AgentCore::failed(uint64_t worker, const std::string& why, Time now) {
  CoreActions actions;
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return actions;
  if (!found->second.orphan) {
    wire::AgentFailedT failed;
    failed.worker = worker;
    failed.message = why;
    report(std::move(failed), &actions);
  }
  workers_.erase(found);
  judge(now, &actions);
  return actions;
}

CoreActions AgentCore::died(uint64_t worker, const Digest& life_token) const {
  const auto found = workers_.find(worker);
  if (!online_ || finished_ || found == workers_.end() || found->second.orphan || !found->second.running)
    return {};
  return {SendDied{worker, life_token}};
}

CoreActions AgentCore::exited(uint64_t worker, int32_t exit_status, Time now) {
  CoreActions actions;
  const auto found = workers_.find(worker);
  if (found == workers_.end() || !std::exchange(found->second.running, false)) return actions;
  if (!found->second.orphan) {
    wire::AgentExitedT exited;
    exited.worker = worker;
    exited.exit_status = exit_status;
    report(exited, &actions);
  }
  judge(now, &actions);
  return actions;
}

CoreActions AgentCore::output(uint64_t worker, bool is_stderr, std::string_view bytes, Time) {
  CoreActions actions;
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.orphan) return actions;
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kPiece);
    bytes.remove_prefix(piece.size());
    wire::AgentOutputT output;
    output.worker = worker;
    output.is_stderr = is_stderr;
    output.bytes.assign(piece.begin(), piece.end());
    report(std::move(output), &actions);
  }
  hold_or_not(&actions);
  return actions;
}

CoreActions AgentCore::gone(uint64_t worker, Time now) {
  CoreActions actions;
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return actions;
  if (!found->second.orphan) {
    wire::AgentGoneT gone;
    gone.worker = worker;
    report(gone, &actions);
  }
  workers_.erase(found);
  judge(now, &actions);
  return actions;
}

void AgentCore::end_all(const std::string& why, Duration grace, hvd_status code, Time now,
                        CoreActions* actions) {
  if (ending_.empty()) {
    ending_ = why.empty() ? "it was told to" : why;
    end_code_ = code;
  }
  end_by_ = now + grace + kLastReports;
  for (const auto& [id, worker] : workers_) {
    if (worker.running) actions->push_back(StopProcess{id, grace});
  }
}

CoreActions AgentCore::stop(const std::string& reason, Time now) {
  CoreActions actions;
  if (finished_) return actions;
  end_all(reason, ending_.empty() ? config_.stop_grace : Duration(0), HVD_CLOSED, now, &actions);
  judge(now, &actions);
  return actions;
}

CoreActions AgentCore::drain(const std::string& reason, Duration timeout, Time now) {
  if (drain_ || !ending_.empty() || finished_) return stop(reason, now);
  CoreActions actions;
  drain_ = Drain{now + std::clamp(timeout, Duration(0), kLongestGrace), reason};
  if (online_) actions.push_back(SendDrain{drain_->by - now, reason});
  judge(now, &actions);
  return actions;
}

CoreActions AgentCore::tick(Time now) {
  CoreActions actions;
  judge(now, &actions);
  return actions;
}

Time AgentCore::gives_up_at() const { return last_chance_ ? *last_chance_ : alone_since_ + config_.patience; }

void AgentCore::judge(Time now, CoreActions* actions) {
  if (finished_) return;
  // If this comes much too late it was this process that was stopped, and nobody was dialled meanwhile
  // (contract 19).
  if (!online_ && ending_.empty() && now >= gives_up_at() + kMuchTooLate)
    last_chance_ = now + std::min(config_.patience, kLastChance);
  if (!online_ && ending_.empty() && now >= gives_up_at()) {
    end_all(fmt::format("no driver for {} s ({}): {}", seconds_text(now - alone_since_),
                        ever_online_ ? "agent_timeout" : "it never answered; agent_timeout", alone_why_),
            config_.stop_grace, HVD_DRIVER_LOST, now, actions);
  }
  if (drain_ && ending_.empty()) {
    if (workers_.empty()) {
      end_all(drain_->reason, Duration(0), HVD_OK, now, actions);
    } else if (now >= drain_->by) {
      end_all(fmt::format("{} workers had not left in time: {}", workers_.size(), drain_->reason),
              config_.stop_grace, HVD_CLOSED, now, actions);
    }
  }
  if (ending_.empty() || !workers_.empty()) return;
  // The driver learns how they ended, if it is there to be told.
  const bool told = reports_.empty() && backlog_.empty();
  if (online_ && !told && now < end_by_) return;
  finished_ = true;
  if (const uint64_t left = backlog_.bytes() + reports_.bytes(); left > 0)
    ending_ += fmt::format("; {} bytes that workers printed have reached nobody", left);
  actions->push_back(Finished{end_code_, ending_});
}

std::optional<Time> AgentCore::next_tick() const {
  if (finished_) return std::nullopt;
  if (!ending_.empty()) return workers_.empty() ? std::optional<Time>(end_by_) : std::nullopt;
  std::optional<Time> next;
  if (!online_) next = gives_up_at();
  if (drain_) next = next ? std::min(*next, drain_->by) : drain_->by;
  return next;
}

}  // namespace hvd::agent

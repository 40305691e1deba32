// The agent's decisions.
#include "agent/agent_core.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace hvd::agent {
namespace {

constexpr Duration kLastReports = std::chrono::seconds(5);  // for the driver to take them
constexpr size_t kPiece = size_t{256} << 10;                // of output in one report
constexpr Duration kLongestGrace = std::chrono::hours(24);

}  // namespace

AgentCore::AgentCore(CoreConfig config, Time now)
    : config_(config), alone_since_(now), alone_why_("no driver has answered") {}

std::vector<uint64_t> AgentCore::workers() const {
  std::vector<uint64_t> result;
  for (const auto& [id, worker] : workers_) {
    if (!worker.orphan) result.push_back(id);
  }
  return result;
}

CoreActions AgentCore::connected(bool resumed, uint64_t received, Time now) {
  CoreActions actions;
  if (finished_) return actions;
  online_ = ever_online_ = true;
  if (resumed) {
    reports_.acknowledge(received);
    reports_.for_each([&](const Report& r) { actions.push_back(SendReport{r}); });
  } else {
    // Another driver, or one that has given this agent up: it starts its workers anew.
    orders_.restart();
    reports_.clear();
    for (auto& [id, worker] : workers_) {
      worker.orphan = true;
      if (worker.running) actions.push_back(StopProcess{id, Duration(0)});
    }
  }
  if (holding_ && reports_.bytes() <= config_.max_kept / 2) {
    holding_ = false;
    actions.push_back(HoldOutput{false});
  }
  judge(now, &actions);
  return actions;
}

CoreActions AgentCore::disconnected(const std::string& why, Time now) {
  CoreActions actions;
  if (online_) alone_since_ = now;
  online_ = false;
  alone_why_ = why;
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
    if (!ending_.empty()) {
      wire::AgentFailedT failed;
      failed.worker = id;
      failed.message = "the agent is ending: " + ending_;
      report(std::move(failed), 0, &actions);
    } else {
      workers_[id] = {};
      actions.push_back(LaunchWorker{std::move(*start)});
    }
  } else if (const auto* stop = std::get_if<wire::AgentStopT>(&order)) {
    const Duration grace = std::clamp<Duration>(
        milliseconds(std::clamp<int64_t>(stop->grace_ms, 0, 24 * 3600 * 1000)), Duration(0), kLongestGrace);
    if (const auto found = workers_.find(stop->worker);
        found != workers_.end() && !found->second.orphan && found->second.running) {
      actions.push_back(StopProcess{stop->worker, grace});
    }
  } else if (const auto* watch = std::get_if<wire::AgentWatchT>(&order)) {
    if (workers_.contains(watch->worker)) actions.push_back(WatchProcess{watch->worker, watch->process});
  } else if (const auto* end = std::get_if<wire::AgentEndT>(&order)) {
    end_all(printable(end->reason), config_.stop_grace, end->success ? HVD_OK : HVD_JOB_FAILED, now,
            &actions);
  }
  judge(now, &actions);
  return actions;
}

CoreActions AgentCore::acknowledged(uint64_t received, Time now) {
  CoreActions actions;
  reports_.acknowledge(received);
  if (holding_ && reports_.bytes() <= config_.max_kept / 2) {
    holding_ = false;
    actions.push_back(HoldOutput{false});
  }
  judge(now, &actions);
  return actions;
}

void AgentCore::report(Report report, size_t bytes, CoreActions* actions) {
  const Report& kept = reports_.push(std::move(report), bytes);
  if (online_) actions->push_back(SendReport{kept});
}

CoreActions AgentCore::failed(uint64_t worker, const std::string& why, Time now) {
  CoreActions actions;
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return actions;
  if (!found->second.orphan) {
    wire::AgentFailedT failed;
    failed.worker = worker;
    failed.message = why;
    report(std::move(failed), 0, &actions);
  }
  workers_.erase(found);
  judge(now, &actions);
  return actions;
}

CoreActions AgentCore::exited(uint64_t worker, int32_t exit_status, Time now) {
  CoreActions actions;
  const auto found = workers_.find(worker);
  if (found == workers_.end() || !std::exchange(found->second.running, false)) return actions;
  if (!found->second.orphan) {
    wire::AgentExitedT exited;
    exited.worker = worker;
    exited.exit_status = exit_status;
    report(exited, 0, &actions);
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
    report(std::move(output), piece.size() + 64, &actions);
  }
  if (!holding_ && reports_.bytes() > config_.max_kept) {
    holding_ = true;
    actions.push_back(HoldOutput{true});
  }
  return actions;
}

CoreActions AgentCore::gone(uint64_t worker, Time now) {
  CoreActions actions;
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return actions;
  if (!found->second.orphan) {
    wire::AgentGoneT gone;
    gone.worker = worker;
    report(gone, 0, &actions);
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

CoreActions AgentCore::tick(Time now) {
  CoreActions actions;
  judge(now, &actions);
  return actions;
}

void AgentCore::judge(Time now, CoreActions* actions) {
  if (finished_) return;
  if (!online_ && ending_.empty() && now >= alone_since_ + config_.patience) {
    end_all(fmt::format("no driver for {} s ({}): {}", seconds_text(now - alone_since_),
                        ever_online_ ? "agent_timeout" : "it never answered; agent_timeout", alone_why_),
            config_.stop_grace, HVD_DRIVER_LOST, now, actions);
  }
  if (ending_.empty() || !workers_.empty()) return;
  // The driver learns how they ended, if it is there to be told.
  if (online_ && !reports_.empty() && now < end_by_) return;
  finished_ = true;
  actions->push_back(Finished{end_code_, ending_});
}

std::optional<Time> AgentCore::next_tick() const {
  if (finished_) return std::nullopt;
  if (!ending_.empty()) return workers_.empty() ? std::optional<Time>(end_by_) : std::nullopt;
  if (!online_) return alone_since_ + config_.patience;
  return std::nullopt;
}

}  // namespace hvd::agent

// Workers as the supervisor sees them: who may connect, how one is lost, how its process ends.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <iterator>
#include <utility>

#include "base/text.h"
#include "driver/supervisor_impl.h"
#include "launch/process.h"
#include "wire/messages.h"

namespace hvd::driver {
namespace {

// A process that has ended has closed its connection as well, unless a child of it holds it open.
constexpr Duration kHeldOpen = std::chrono::milliseconds(500);

/// The process says that it failed. One that somebody else ended (SIGKILL, SIGTERM) says nothing.
bool is_own_failure(int32_t exit_status) {
  if (exit_status < 256) return exit_status > 0;
  constexpr int kFaults[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
  return std::find(std::begin(kFaults), std::end(kFaults), exit_status - 256) != std::end(kFaults);
}

const char* of(membership::LossKind kind) {
  switch (kind) {
    case membership::LossKind::kSilent:
    case membership::LossKind::kEvicted: return "evicted";
    case membership::LossKind::kLeft: return "left";
    default: return "lost";
  }
}

}  // namespace

/// Those that are long gone are forgotten: refused as unknown, should they come back. A worker that came by
/// itself has no process here, and lives as long as its connection.
Supervisor::Worker& Supervisor::add_worker(uint64_t id) {
  if (workers_.size() > std::max(forget_at_, config_.remembered)) {
    std::erase_if(workers_, [this](const auto& w) {
      const Worker& worker = w.second;
      return !worker.process && (worker.lost || worker.done) && !server_->connected(w.first);
    });
    forget_at_ = 2 * workers_.size();
  }
  return workers_.try_emplace(id, loop_).first->second;
}

/// Of its process; `said`: the number that it names as its own, or 0.
launch::Life Supervisor::life(uint64_t id, int64_t said) const {
  const auto found = workers_.find(id);
  if (found != workers_.end() && found->second.foreign) return launch::Life::kUnknown;
  return launcher_->life(id, said);
}

std::string Supervisor::name_of(uint64_t id) const {
  const auto found = workers_.find(id);
  if (found == workers_.end()) return fmt::format("worker {}", id);
  const Worker& worker = found->second;
  const std::string rank = worker.rank >= 0 ? fmt::format(", rank {}", worker.rank) : "";
  return fmt::format("worker {} (host {}, slot {}{})", id, worker.host, worker.slot, rank);
}

std::optional<Refusal> Supervisor::admit(uint64_t id) const {
  const auto found = workers_.find(id);
  if (found == workers_.end()) {
    return Refusal{wire::Refusal::Unknown, fmt::format("no worker {} was started by this driver", id)};
  }
  if (found->second.done) return std::nullopt;  // it waits for the word that the job has ended
  if (found->second.fate) return found->second.fate;
  if (!membership_->expects(id)) {
    return Refusal{wire::Refusal::Stale, fmt::format("worker {} is no longer expected", id)};
  }
  return std::nullopt;
}

void Supervisor::worker_lost(uint64_t id, membership::LossKind kind, std::string why) {
  const auto found = workers_.find(id);
  if (found == workers_.end() || found->second.lost) return;
  if (config_.journal && config_.journal->superseded())
    return superseded();  // it went to the driver that has taken over
  if (is_doubtful(id, kind, why)) return;
  Worker& worker = found->second;
  worker.lost = true;
  if (worker.foreign) worker.process = false;
  if (kind == membership::LossKind::kConnectionClosed) {
    // How its process ended says more, if that is known by now.
    if (!worker.exit_status) worker.exit_status = launcher_->ended(id);
    if (worker.exit_status && *worker.exit_status >= 0) {
      kind = membership::LossKind::kExited;
      why = launch::exit_text(*worker.exit_status);
    }
  }
  worker.fate = Refusal{kind == membership::LossKind::kSilent ? wire::Refusal::Evicted : wire::Refusal::Stale,
                        fmt::format("worker {} was {}: {}", id, of(kind), why)};
  const std::string name = name_of(id);
  if (worker.done || finish_) {
    logger_->debug("{} is gone: {}", name, why);
    return publish();
  }
  if (membership_->is_member(id)) note(HVD_LOG_INFO, fmt::format("{} {}: {}", name, of(kind), why));
  apply(membership_->worker_lost(id, kind, why, clock_.now()));
  // It is out of the job. It may read why and end by itself; a process that stays would hold the slot.
  if (!finish_) end_process(id, config_.settings.stop_grace);
}

void Supervisor::launch_failed(uint64_t id, const std::string& why) {
  const auto found = workers_.find(id);
  if (found == workers_.end()) return;
  found->second.process = false;
  found->second.lost = true;
  found->second.fate = Refusal{wire::Refusal::Stale, why};
  if (!finish_)
    return apply(membership_->worker_lost(id, membership::LossKind::kStartFailed, why, clock_.now()));
  publish();
}

void Supervisor::process_exited(uint64_t id, int32_t exit_status) {
  const auto found = workers_.find(id);
  if (found == workers_.end()) return;
  Worker& worker = found->second;
  const std::string text = launch::exit_text(exit_status);
  worker.exit_status = exit_status;
  judge_end(id);
  if (worker.done || finish_) {
    logger_->debug("{} {}", name_of(id), text);
  } else if (worker.lost) {
    logger_->info("{} {}", name_of(id), text);
  }
  if (worker.lost || finish_) return;
  if (!server_->connected(id)) return worker_lost(id, membership::LossKind::kExited, text);
  // Its last messages, and the end of its connection, are under way and count first.
  worker.timer.start(kHeldOpen, [this, id, text] {
    server_->dismiss(id, wire::Refusal::Stale, "its process has ended");
    worker_lost(id, membership::LossKind::kExited, text);
  });
}

// contract 8: success takes both, the workers' word and an end without an error. A training that is complete
// is of no use if what follows it (an evaluation, the saving of a model, a test's verdict) fails unseen.
void Supervisor::judge_end(uint64_t id) {
  const Worker& worker = workers_.at(id);
  if (!worker.done || worker.exit_status.value_or(0) <= 0 || stopped_) return;
  const std::string text = fmt::format("{} {} after it had said that it was done", name_of(id),
                                       launch::exit_text(*worker.exit_status));
  logger_->warning("{}", text);
  if (!is_own_failure(*worker.exit_status)) return;
  if (done_in_vain_.empty()) done_in_vain_ = text;
  doubt_success();
}

void Supervisor::doubt_success() {
  if (!finish_ || !finish_->success || done_in_vain_.empty()) return;
  finish_->success = false;
  finish_->sentence = fmt::format("{} ({})", done_in_vain_, finish_->sentence);
}

void Supervisor::process_gone(uint64_t id) {
  const auto found = workers_.find(id);
  if (found == workers_.end()) return;
  Worker& worker = found->second;
  worker.process = false;
  recorder_.gone(id);
  if (worker.lost || finish_) worker.timer.cancel();
  publish();
}

/// Its host's agent says so, ahead of how it has ended.
void Supervisor::process_died(uint64_t id, const Digest& life_token) {
  const auto found = workers_.find(id);
  if (closed_ || superseded_ || found == workers_.end()) return;
  server_->life_ended(id, life_token, fmt::format("the agent of host {}", found->second.host));
}

void Supervisor::end_process(uint64_t id, Duration after) {
  const auto found = workers_.find(id);
  if (found == workers_.end() || !found->second.process) return;
  const Duration grace = config_.settings.stop_grace;
  if (found->second.foreign) {  // whoever started it ends it; it has been told
    found->second.timer.start(std::max(after, grace), [this, id] {
      workers_.at(id).process = false;
      publish();
    });
    return;
  }
  if (after <= Duration(0)) return launcher_->stop(id, grace);
  found->second.timer.start(after, [this, id, grace] { launcher_->stop(id, grace); });
}

void Supervisor::end_all_processes(Duration after) {
  for (auto& [id, worker] : workers_) end_process(id, after);
}

}  // namespace hvd::driver

// What the supervisor tells of the job: its snapshot, and where it can be asked.
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "driver/operator.h"
#include "driver/supervisor_impl.h"
#include "membership/takeover.h"
#include "membership/worker_registry.h"
#include "wire/tls.h"

namespace hvd::driver {

status::WorkerView Supervisor::view_of(uint64_t id, const Worker& worker, Time at) const {
  using enum status::WorkerState;
  status::WorkerView view;
  view.id = id;
  view.host = worker.host;
  view.slot = worker.slot;
  const auto heard = server_->hearing(id, at);
  if (heard) {
    view.silence = heard->silence;
    view.revision = heard->revision;
  }
  const membership::Worker* known = membership_->worker(id);
  if (known != nullptr && known->member()) view.rank = known->rank;
  const bool lost = membership_->phase() == membership::Phase::kForming;
  view.state = worker.done                       ? kDone
               : worker.lost || known == nullptr ? kEnding
               : heard && heard->silent          ? kSilent
               : known->ready                    ? kWaiting
               : !known->member()                ? kStarting
               : lost                            ? kRecovering
               : known->synced                   ? kTraining
                                                 : kSyncing;
  return view;
}

status::Snapshot Supervisor::snapshot() const {
  status::Snapshot status = summary();
  const Time at = now();
  status.unix_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  if (membership_) {
    for (const membership::KnownHost& host : membership_->hosts(clock_.now())) {
      status.hosts.push_back(
          {host.name, host.slots, host.failures, host.blocked, host.drained, host.blocked_for});
    }
    for (const auto& [id, worker] : workers_) {
      if (worker.process) status.all.push_back(view_of(id, worker, at));
    }
    std::stable_sort(status.all.begin(), status.all.end(), [](const auto& a, const auto& b) {
      return static_cast<uint32_t>(a.rank) < static_cast<uint32_t>(b.rank);  // -1: last
    });
  }
  recorder_.fill(&status, at);
  if (config_.log_lines) status.log = config_.log_lines();
  return status;
}

/// What costs the same however many workers there are: told after every event.
status::Snapshot Supervisor::summary() const {
  status::Snapshot status;
  status.job = config_.settings.job;
  status.term = term();
  if (!membership_) return status;
  if (finish_) {
    status.phase = !over() ? HVD_PHASE_ENDING : finish_->success ? HVD_PHASE_SUCCEEDED : HVD_PHASE_FAILED;
    status.sentence = finish_->sentence;
    status.try_again = !finish_->success && finish_->try_again;
  } else {
    status.phase =
        membership_->phase() == membership::Phase::kRunning ? HVD_PHASE_RUNNING : HVD_PHASE_FORMING;
    status.sentence = membership_->waiting_for();
  }
  status.stall = membership_->stall();
  const Time at = clock_.now();
  status.size = membership_->size();
  status.workers = static_cast<int32_t>(
      std::count_if(workers_.begin(), workers_.end(), [](const auto& w) { return w.second.process; }));
  status.slots = membership_->usable_slots(at);
  status.resets = membership_->resets();
  status.hosts_blocked = membership_->blocked_hosts(at);
  status.port = server_->port();
  status.generation = membership_->generation();
  status.epoch = membership_->epoch();
  return status;
}

void Supervisor::write_address() {
  const Settings& settings = config_.settings;
  if (settings.address_file.empty()) return;
  write_address_file(settings.address_file, {driver_endpoint(), settings.job,
                                             wire::key_text(settings.secret, wire::kOperatorIdentity)});
  address_written_ = true;
}

/// Whoever finds the file finds a driver. A file that is another driver's by now stays.
void Supervisor::remove_address() {
  if (!std::exchange(address_written_, false)) return;
  try {
    const DriverAddress written = read_address_file(config_.settings.address_file);
    if (written.endpoint == driver_endpoint() && written.job == config_.settings.job) {
      ::unlink(config_.settings.address_file.c_str());
    }
  } catch (const Error& error) { logger_->debug("{}", error.what()); }
}

}  // namespace hvd::driver

// What the supervisor tells of the job: its snapshot, and where it can be asked.
#include <unistd.h>

#include <algorithm>

#include "driver/operator.h"
#include "driver/supervisor_impl.h"
#include "wire/tls.h"

namespace hvd::driver {

status::Snapshot Supervisor::snapshot() const {
  status::Snapshot status;
  status.job = config_.settings.job;
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
  const Time at = now();
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

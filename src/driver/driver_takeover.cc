// A driver among other drivers of its job: it stands by for one, meets the agents of an earlier one, and
// gives them up to a later one.
#include <exception>

#include "driver/driver.h"

namespace hvd::driver {

/// Until the job needs this driver. Throws Error(HVD_CLOSED): it never will.
void Driver::stand_by() {
  if (!settings().standby || succession_.goes_on()) return;
  const auto standby = std::make_shared<Standby>(settings().journal, settings().heartbeat_timeout,
                                                 settings().membership.elastic_timeout, logger_);
  {
    std::lock_guard lock(mutex_);
    if (closed_) throw Error(HVD_CLOSED, "the driver was closed");
    standby_ = standby;
  }
  std::exception_ptr never;
  try {
    standby->wait();
  } catch (...) { never = std::current_exception(); }
  {
    std::lock_guard lock(mutex_);
    standby_.reset();
  }
  if (never) std::rethrow_exception(never);
}

/// Takes the job over by what the journal and the workers tell. Of several standbys the fastest wins; the
/// others wait on.
void Driver::succeed(const std::string& guard_path) {
  while (true) {
    stand_by();
    try {
      return run_on_loop([&] { succession_.begin(guard_path); });
    } catch (const Error& error) {
      if (!settings().standby || error.status().code != HVD_UNAVAILABLE || !succession_.overtaken()) throw;
      logger_->info("{}", error.what());
    }
  }
}

void Driver::meet_agents() {
  agent_server_->set_found([this](uint64_t worker, const std::string& host, int32_t slot) {
    if (supervisor_) supervisor_->worker_found(worker, host, slot);
  });
  agent_server_->set_lost([this] {
    if (supervisor_) supervisor_->look_for_successor();
  });
  agent_server_->set_terms([this] { return supervisor_ ? supervisor_->term() : succession_.term(); },
                           [this](uint64_t term) { return supervisor_ && supervisor_->fence(term); });
  agent_server_->inherit_programs();
  // Each host of such a job has had an agent, which may come back.
  if (!succession_.known() || !options_.boolean("discover_agents")) return;
  for (const membership::KnownHost& host : succession_.known()->hosts)
    agent_server_->expect(host.name, host.slots);
}

}  // namespace hvd::driver

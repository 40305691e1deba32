// A driver among other drivers of its job: it stands by for one, meets the agents of an earlier one, and
// gives them up to a later one.
#include <algorithm>
#include <exception>
#include <thread>

#include "driver/driver.h"
#include "membership/journal.h"

namespace hvd::driver {
namespace {
constexpr Duration kPatience = std::chrono::seconds(2), kLastQuestions = std::chrono::seconds(1);
}

/// Until the job needs this driver. Throws Error(HVD_CLOSED): it never will.
void Driver::stand_by(const std::string& guard_path) {
  if (!settings().standby || succession_.goes_on()) return;
  Standby::Watched watched = Standby::directory(settings().journal);
  std::shared_ptr<Follower> follower;
  if (!settings().follow.empty()) {
    const Duration patience =
        std::min<Duration>(settings().heartbeat_timeout / 3, kPatience) + settings().heartbeat_interval;
    follower = std::make_shared<Follower>(others(), patience, logger_);
    watched = {follower->where(), [follower] { return follower->look(); },
               [follower] { return membership::read_journal(follower->copy().bytes()); }};
  }
  const auto standby = std::make_shared<Standby>(std::move(watched), settings().heartbeat_timeout,
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
  if (follower) run_on_loop([&] { succession_.follow(guard_path, follower->copy()); });
}

std::vector<DriverAddress> Driver::others() const {
  return drivers_to_follow(settings().follow, settings().job, settings().secret);
}

/// Who follows asks again within moments of an answer. Whoever missed the end of the job would take it over.
void Driver::tell_followers() {
  bool followed = false;
  run_on_loop([&] { followed = supervisor_ && supervisor_->followed(); });
  if (followed) std::this_thread::sleep_for(kLastQuestions);
}

/// An older driver without this one's directory has no other way to learn of it.
void Driver::fence_others() {
  if (settings().follow.empty()) return;
  fence_ = std::make_unique<Fence>(others(), succession_.term(), logger_, [this] {
    loop_->post([this] {
      if (supervisor_) supervisor_->yield();
    });
  });
}

/// Takes the job over by what the journal and the workers tell. Of several standbys the fastest wins; the
/// others wait on.
void Driver::succeed(const std::string& guard_path) {
  while (true) {
    stand_by(guard_path);
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
                           [this](uint64_t term, const std::string& proof) {
                             return supervisor_ && supervisor_->fence(term, proof);
                           });
  agent_server_->inherit_programs();
  // Each host of such a job has had an agent, which may come back.
  if (!succession_.known() || !options_.boolean("discover_agents")) return;
  for (const membership::KnownHost& host : succession_.known()->hosts)
    agent_server_->expect(host.name, host.slots);
}

}  // namespace hvd::driver

// Starts, watches and ends the workers of this host, as the core decides.
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <string_view>
#include <utility>

#include "agent/agent_impl.h"
#include "agent/environment.h"
#include "agent/spool.h"

namespace hvd::agent {
namespace {

/// Never 0.
uint64_t random_number() {
  uint64_t number = 0;
  while (number == 0) {
    if (::getrandom(&number, sizeof number, 0) != sizeof number) number = 0;
  }
  return number;
}

}  // namespace

Agent::Impl::Impl(Loop& l, const AgentSettings& s, LoggerPtr log, std::vector<std::string> command,
                  std::vector<std::string> variables, std::function<void(Status)> done)
    : loop(l),
      settings(s),
      logger(std::move(log)),
      argv(std::move(command)),
      environment(std::move(variables)),
      finished(std::move(done)),
      core({settings.patience, settings.stop_grace}, now(),
           make_file_spool(settings.spool, settings.spool_bytes)),
      instance(random_number()),
      guard(std::make_shared<launch::Guard>(launch::find_guard(settings.guard), settings.stop_grace, logger)),
      dial_timer(loop),
      beat(loop),
      tick(loop) {}

Agent::Impl::~Impl() {
  alive.reset();
  if (channel) channel->close(Duration(0));
  for (const auto& [id, worker] : workers) worker->process->signal_group(SIGKILL);
  for (const auto& [id, worker] : workers) worker->process->abandon();
}

void Agent::Impl::do_all(CoreActions actions) {
  for (CoreAction& action : actions) {
    std::visit([this](auto& a) { perform(a); }, action);
  }
  arm();
}

void Agent::Impl::arm() {
  if (const std::optional<Time> next = core.next_tick()) {
    tick.start(std::max(*next - now(), Duration(0)), [this] { do_all(core.tick(now())); });
  } else {
    tick.cancel();
  }
}

void Agent::Impl::perform(SendReport& action) {
  if (!welcomed) return;
  std::visit([this](auto& report) { send(std::move(report)); }, action.report);
}

void Agent::Impl::perform(SendDrain& action) {
  if (!welcomed) return;
  if (!takes_drain) return do_all(core.stop(action.reason, now()));
  wire::AgentDrainT drain;
  drain.timeout_ms = std::chrono::duration_cast<std::chrono::milliseconds>(action.timeout).count();
  drain.reason = action.reason;
  send(std::move(drain));
}

void Agent::Impl::perform(AgentNote& action) {
  logger->write(action.warning ? HVD_LOG_WARNING : HVD_LOG_INFO, action.text);
}

void Agent::Impl::perform(HoldOutput& action) {
  holding = action.hold;
  for (const auto& [id, worker] : workers) worker->process->hold_output(holding);
}

void Agent::Impl::perform(StopProcess& action) {
  const auto found = workers.find(action.worker);
  if (found == workers.end() || !found->second->process->running()) return;
  found->second->process->stop(action.grace, [log = logger, id = action.worker] {
    log->warning("worker {} did not end within its grace: SIGKILL", id);
  });
}

void Agent::Impl::perform(WatchProcess& action) {
  const auto found = workers.find(action.worker);
  if (found == workers.end()) return;
  Worker& worker = *found->second;
  const launch::ProcessClaim& claim = action.claim;
  const bool same = worker.watched && claim.life >= 0 && claim.life_token == worker.claim.life_token;
  worker.claim = claim;
  if (same) return;
  if (std::exchange(worker.watched, false)) lives.forget(action.worker);
  if (claim.life < 0) return;
  worker.watched = lives.watch(action.worker, claim.process, claim.life, claim.life_token,
                               [this, told = guarded([this, id = action.worker, token = claim.life_token] {
                                        do_all(core.died(id, token));
                                      })] { loop.post(told); });
  if (!worker.watched) logger->debug("worker {}: its exit alone tells of its end", action.worker);
}

void Agent::Impl::perform(SendDied& action) {
  if (!welcomed) return;
  wire::AgentDiedT died;
  died.worker = action.worker;
  died.life_token = std::make_unique<wire::Digest>(action.life_token.low, action.life_token.high);
  send(std::move(died));
}

void Agent::Impl::perform(LaunchWorker& action) {
  const uint64_t id = action.order.worker;
  const auto failed = [this, id](const std::string& why) {
    loop.post(guarded([this, id, why] {
      workers.erase(id);
      do_all(core.failed(id, why, now()));
    }));
  };
  try {
    launch::SpawnSpec spec;
    const bool own = !argv.empty();
    spec.argv = own ? argv : action.order.argv;
    if (spec.argv.empty())
      throw Error(HVD_UNAVAILABLE, "neither the driver nor the agent has a command for workers");
    spec.directory = own ? "" : action.order.directory;
    spec.umask = own ? -1 : action.order.umask & 0777;
    if (!own && action.order.umask < 0) spec.umask = -1;
    struct stat info {};
    if (!spec.directory.empty() && (::stat(spec.directory.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)))
      throw Error(HVD_UNAVAILABLE, fmt::format("the working directory {} is not there", spec.directory));
    spec.environment =
        worker_environment(own ? std::vector<std::string>() : action.order.base,
                           launch::merged_environment(environment), own, action.order.environment, drivers());
    spec.path = launch::find_program(spec.argv.front(), path_of(spec.environment), spec.directory);
    auto worker = std::make_unique<Worker>();
    launch::Process::Handlers handlers;
    handlers.output = [this, id](bool is_stderr, std::string_view bytes) {
      do_all(core.output(id, is_stderr, bytes, now()));
    };
    handlers.exited = [this, id](int32_t status) { do_all(core.exited(id, status, now())); };
    handlers.gone = [this, id] {
      loop.post(guarded([this, id] {
        lives.forget(id);
        workers.erase(id);
        do_all(core.gone(id, now()));
      }));
    };
    handlers.failed = failed;
    worker->process =
        launch::Process::start(loop, std::move(spec), std::move(handlers), {false, guard, false});
    if (holding) worker->process->hold_output(true);
    workers[id] = std::move(worker);
  } catch (const Error& error) { failed(error.what()); }
}

void Agent::Impl::perform(Finished& action) {
  dial_timer.cancel();
  beat.cancel();
  if (channel && welcomed) {
    wire::AgentLeaveT leave;
    leave.reason = action.sentence;
    send(std::move(leave));
  }
  if (channel) channel->close(kLinger);
  channel.reset();
  finished(action.code == HVD_OK ? Status() : Status(action.code, action.sentence));
}

}  // namespace hvd::agent

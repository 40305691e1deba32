// Carries events to membership and its decisions to workers.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"
#include "driver/supervisor_impl.h"
#include "launch/process.h"
#include "membership/journal.h"
#include "wire/messages.h"
#include "wire/tls.h"

namespace hvd::driver {
namespace {

// When the job has failed, workers are told and get this long before SIGTERM.
constexpr Duration kLastWord = std::chrono::seconds(1);

}  // namespace

Supervisor::Supervisor(Loop& loop, SupervisorConfig config, std::unique_ptr<HostDiscovery> discovery)
    : loop_(loop),
      config_(std::move(config)),
      logger_(config_.logger),
      discovery_(std::move(discovery)),
      clock_(loop, config_.settings.heartbeat_interval,
             [this](Duration held, Time at) {
               if (membership_) membership_->driver_held_up(held, at);
             }),
      tick_(loop),
      discovery_timer_(loop),
      publish_timer_(loop),
      doubt_timer_(loop),
      beat_timer_(loop),
      follow_timer_(loop),
      loss_timer_(loop) {
  launch::Launcher::Events process;
  process.failed = [this](uint64_t worker, const std::string& why) { launch_failed(worker, why); };
  process.exited = [this](uint64_t worker, int32_t status) { process_exited(worker, status); };
  process.gone = [this](uint64_t worker) { process_gone(worker); };
  process.died = [this](uint64_t worker, const Digest& life) { process_died(worker, life); };
  launcher_ = config_.make_launcher(std::move(process));
}

Supervisor::~Supervisor() { close(Duration(0)); }

void Supervisor::close(Duration grace) {
  if (publishing_) publish_now();
  if (std::exchange(closed_, true)) return;
  const Time deadline = now() + grace;
  clock_.close();
  tick_.cancel();
  discovery_timer_.cancel();
  doubt_timer_.cancel();
  follow_timer_.cancel();
  loss_timer_.cancel();
  followers_.clear();
  beat_timer_.cancel();
  for (auto& [id, worker] : workers_) worker.timer.cancel();
  drop_applicants();
  launcher_->close(grace);
  discovery_->close(std::max(deadline - now(), Duration(0)));
  remove_address();
  server_.reset();
}

// ---- hosts ----

void Supervisor::discover_first(std::function<void(const Status& status)> done) {
  discovery_->discover(
      [this, done = std::move(done)](const Status& status, std::vector<membership::HostSlots> hosts) {
        hosts_ = std::move(hosts);
        done(status);
      });
}

/// Not before there are workers to admit: those that are there already knock as soon as somebody listens.
void Supervisor::listen() {
  const Settings& s = config_.settings;
  RendezvousConfig rendezvous;
  rendezvous.job = s.job;
  rendezvous.secret = s.secret;
  rendezvous.listen = s.listen;
  rendezvous.heartbeat_interval = s.heartbeat_interval;
  rendezvous.heartbeat_timeout = s.heartbeat_timeout;
  rendezvous.slow_timeout = s.slow_timeout;
  rendezvous.term = config_.term;
  if (config_.keeper) {
    if (auto kept = config_.keeper->take("listen"); kept && kept->descriptors.size() == 1)
      rendezvous.socket = kept->descriptors.front();
  }
  RendezvousServer::Events events;
  events.back = [this](uint64_t worker, const membership::BackEvent& event) { worker_back(worker, event); };
  events.may_be_known = [this](uint64_t) { return membership_->may_come_back() && !finish_; };
  events.newer_term = [this](uint64_t term, bool proved) { return newer_term(term, proved); };
  events.admit = [this](uint64_t worker) { return admit(worker); };
  events.connected = [this](uint64_t worker, const launch::ProcessClaim& process) {
    launcher_->set_process(worker, process);
    publish();
  };
  events.guest = [this](const std::shared_ptr<wire::Channel>& channel, const wire::EnvelopeT& message) {
    return guest(channel, message);
  };
  events.life = [this](uint64_t worker, int64_t process) { return life(worker, process); };
  events.ready = [this](uint64_t worker, membership::ReadyEvent event) {
    apply(membership_->worker_ready(worker, std::move(event), clock_.now()));
  };
  events.synced = [this](uint64_t worker, uint64_t generation, uint64_t revision) {
    apply(membership_->worker_synced(worker, generation, revision, clock_.now()));
  };
  events.feed_offered = [this](uint64_t worker, uint64_t generation, const membership::FeedOffer& offer) {
    apply(membership_->feed_offered(worker, generation, offer, clock_.now()));
  };
  events.fed = [this](uint64_t worker, const membership::FedEvent& event) {
    apply(membership_->worker_fed(worker, event, clock_.now()));
  };
  events.failure = [this](uint64_t worker, uint64_t generation, int32_t rank, const std::string& message) {
    apply(membership_->worker_failed_link(worker, generation, rank, message, clock_.now()));
  };
  events.unfit = [this](uint64_t worker, uint64_t generation, int32_t rank, const std::string& message) {
    apply(membership_->worker_unfit(worker, generation, rank, message, clock_.now()));
  };
  events.stalled = [this](uint64_t worker, uint64_t generation, const membership::StallEvent& event) {
    recorder_.stalled(event.text, event.waited, now());
    apply(membership_->worker_stalled(worker, generation, event, clock_.now()));
  };
  events.progress = [this](uint64_t worker, const status::Progress& progress) {
    recorder_.progress(worker, progress, now());
  };
  events.recovered = [this](uint64_t worker, uint64_t generation, const status::Recovery& recovery) {
    recorder_.recovered(worker, generation, recovery);
  };
  events.command = [this](const std::string& verb, const std::string& argument, const CommandReply& reply) {
    command(verb, argument, reply);
  };
  events.done = [this](uint64_t worker, uint64_t generation) {
    const bool counts = membership_->is_member(worker) && generation == membership_->generation();
    if (const auto found = workers_.find(worker); found != workers_.end() && counts) {
      found->second.done = true;
      judge_end(worker);
    }
    apply(membership_->worker_done(worker, generation, clock_.now()));
  };
  events.leaving = [this](uint64_t worker, Duration timeout, const std::string& why) {
    apply(membership_->worker_leaving(worker, timeout, why, clock_.now()));
  };
  events.lost = [this](uint64_t worker, membership::LossKind kind, const std::string& why) {
    worker_lost(worker, kind, why);
  };
  server_ = std::make_unique<RendezvousServer>(loop_, std::move(rendezvous), logger_, std::move(events));
  if (config_.listening) endpoint_ = config_.listening(server_->address(), server_->port());
  if (config_.keeper) config_.keeper->keep("listen", "", {server_->descriptor()});
}

void Supervisor::begin() {
  listen();
  membership::MembershipConfig config = membership_config(config_.settings, hosts_, discovery_->fixed());
  config.runs = [this](uint64_t worker) { return life(worker, 0) == launch::Life::kRunning; };
  first_size_ = config.np;
  std::vector<launch::InheritedWorker> kept;
  if (config_.known) {
    if (config_.keeper) kept = config_.keeper->take_workers();
    know(kept);
    took_over_ = now();
    membership_ = std::make_unique<membership::Membership>(config, *config_.known, settle(), clock_.now());
    gathering_ = true;
  } else {
    membership_ = std::make_unique<membership::Membership>(config, clock_.now());
  }
  if (config_.journal) {
    config_.journal->write(
        {membership::TermBegan{config_.term, config_.settings.job, driver_endpoint()}, membership_->known()});
    config_.journal->sync();
  }
  logger_->info("job {} listens at {}, hosts: {}", config_.settings.job, driver_endpoint(),
                describe_hosts(hosts_));
  if (hosts_.empty()) {
    logger_->warning(
        "the first discovery found no hosts: the job waits up to {} s for some (elastic_timeout)",
        seconds_text(config_.settings.membership.elastic_timeout));
  }
  write_address();
  beat();
  if (config_.known) inherit(kept);
  if (!joining_closed_.empty()) apply(membership_->close_joining(joining_closed_, clock_.now()));
  if (!finish_) apply(membership_->hosts_changed(hosts_, clock_.now()));
  discover_later();
}

void Supervisor::discover_later() {
  if (discovery_->fixed() || finish_) return;
  discovery_timer_.start(config_.settings.discovery_interval, [this] { discover(); });
}

void Supervisor::discover() {
  discovering_ = true;
  discovery_->discover([this](const Status& status, std::vector<membership::HostSlots> hosts) {
    discovering_ = false;
    discovered(status, std::move(hosts));
  });
}

void Supervisor::discover_now() {
  if (!membership_ || discovering_ || finish_ || closed_ || discovery_->fixed()) return;
  discovery_timer_.cancel();
  discover();
}

void Supervisor::discovered(const Status& status, std::vector<membership::HostSlots> hosts) {
  if (finish_) return;
  if (!status.ok()) {
    // The hosts known so far stay: a discovery that fails says nothing about them.
    if (status.message != discovery_failure_) {
      logger_->warning("discovery failed, the hosts stay as they were: {}", status.message);
    }
    discovery_failure_ = status.message;
  } else {
    if (!discovery_failure_.empty()) logger_->info("discovery works again");
    discovery_failure_.clear();
    if (hosts != hosts_) {
      hosts_ = std::move(hosts);
      logger_->info("hosts updated: {}", describe_hosts(hosts_));
      apply(membership_->hosts_changed(hosts_, clock_.now()));
    }
  }
  discover_later();
}

// ---- actions ----

void Supervisor::apply(std::vector<membership::Action> actions) {
  // Whoever takes the job over must know of a generation before its members do (contract 14).
  if (!write_journal()) return superseded();
  // Then messages to workers; a slow reader of the log delays none of them (contract 3).
  for (membership::Action& action : actions) {
    std::visit([this](auto& a) { perform(a); }, action);
  }
  for (const membership::LogLine& line : std::exchange(lines_, {})) logger_->write(line.level, line.text);
  if (const std::optional<Time> next = membership_->next_tick(); next && !finish_) {
    tick_.start(std::max(*next - clock_.now(), Duration(0)),
                [this] { apply(membership_->tick(clock_.now())); });
  } else {
    tick_.cancel();
  }
  server_->set_epoch(membership_->epoch());
  if (gathering_ && !membership_->gathering()) gathered();
  publish();
}

std::string Supervisor::driver_endpoint() const {
  if (!endpoint_.empty()) return endpoint_;
  std::string address = server_->address();
  if (address == "0.0.0.0" || address == "::") {
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) == 0) address = name.data();
  }
  return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, server_->port())
                                                : fmt::format("[{}]:{}", address, server_->port());
}

void Supervisor::perform(membership::StopWorker& action) {
  const auto found = workers_.find(action.worker);
  if (found == workers_.end()) return;
  Worker& worker = found->second;
  worker.lost = true;
  worker.fate = Refusal{wire::Refusal::Removed, action.reason};
  if (finish_) return;  // it was told with everybody, and its process has its deadline
  note(HVD_LOG_INFO, fmt::format("{} {}: {}", name_of(action.worker),
                                 action.left ? "has left" : "is no longer wanted", action.reason));
  const bool told = worker.told = server_->connected(action.worker);
  server_->dismiss(action.worker, wire::Refusal::Removed, action.reason, action.left);
  end_process(action.worker, told ? std::max(config_.settings.stop_grace, action.grace) : Duration(0));
}

void Supervisor::perform(membership::Assign& action) {
  server_->assign(action);
  const std::vector<Member>& members = action.members();
  std::map<std::string, int32_t> hosts;
  std::vector<uint64_t> ids;
  for (const Member& member : members) ids.push_back(member.worker);
  recorder_.formed(action.generation, ids, action.reason, now());
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const uint64_t id = members[rank].worker;
    launcher_->set_rank(id, static_cast<int32_t>(rank));
    if (const auto found = workers_.find(id); found != workers_.end())
      found->second.rank = static_cast<int32_t>(rank);
    ++hosts[members[rank].host];
  }
  std::vector<membership::HostSlots> list;
  for (const auto& [name, members] : hosts) list.push_back({name, members});
  note(HVD_LOG_INFO, fmt::format("generation {}{}: {} workers on {}", action.generation,
                                 action.generation > 1 ? " formed after a reset" : " formed", members.size(),
                                 describe_hosts(list)));
}

void Supervisor::perform(membership::Abort& action) {
  server_->abort(action);
  recorder_.lost(action.generation, now());
}
void Supervisor::perform(membership::Notify& action) { server_->notify(action); }

void Supervisor::perform(membership::Refuse& action) {
  server_->refuse(action.worker, wire::Refusal::Stale, action.reason);
}

void Supervisor::perform(membership::Finish& action) {
  if (finish_) return;
  finish_ = action;
  recorder_.ended(now());
  launcher_->hurry(config_.settings.heartbeat_timeout);
  tick_.cancel();
  discovery_timer_.cancel();
  server_->end(action.success, action.sentence);
  if (!action.success) {
    note(HVD_LOG_DEBUG, "job failed: " + action.sentence);
    return end_all_processes(kLastWord);
  }
  note(HVD_LOG_DEBUG, "training is complete: " + action.sentence);
  doubt_success();
  for (auto& [id, worker] : workers_) {
    // Members of a job that succeeded may still evaluate, save and print: theirs is the time they need.
    if (!worker.process || worker.done) continue;
    end_process(id, server_->connected(id) || worker.told ? config_.settings.stop_grace : Duration(0));
  }
}

void Supervisor::close_joining(const std::string& reason) {
  if (closed_ || !joining_closed_.empty()) return;
  joining_closed_ = reason;
  if (!membership_) return;
  if (!finish_ && membership_->generation() > 0) {
    note(HVD_LOG_ERROR, reason + "; the job goes on with the workers that it has");
  }
  apply(membership_->close_joining(reason, clock_.now()));
}

void Supervisor::stop(const std::string& reason) {
  if (closed_) return;
  if (stopped_) {
    logger_->warning("stopped again: what is left of the workers is killed");
    for (const auto& [id, worker] : workers_) {
      if (worker.process) launcher_->kill(id);
    }
    return;
  }
  stopped_ = true;
  // Of whose end we know the peers have lost a member, whatever ends the job.
  for (auto& [id, worker] : workers_) {
    if (!worker.exit_status || worker.lost || worker.done || finish_) continue;
    server_->dismiss(id, wire::Refusal::Stale, "its process has ended");
    worker_lost(id, membership::LossKind::kExited, launch::exit_text(*worker.exit_status));
  }
  if (!finish_) return apply(membership_->stop(reason, clock_.now()));
  end_all_processes(Duration(0));
}

bool Supervisor::over() const {
  // A superseded driver that is told to end does so: what runs is another one's.
  if (superseded_ && stopped_) return true;
  return finish_ && !launcher_->awaits() &&
         std::none_of(workers_.begin(), workers_.end(), [](const auto& w) { return w.second.process; });
}

/// Each event may change what is told, and to tell it takes the longer, the more workers there are: it takes
/// no more than a twentieth of the time. Of a few workers that is at once.
void Supervisor::publish() {
  if (closed_ || !membership_ || publishing_) return;
  const Duration rest = published_ + 20 * publish_cost_ - now();
  if (rest <= milliseconds(1)) return publish_now();
  publishing_ = true;
  publish_timer_.start(rest, [this] { publish_now(); });
}

void Supervisor::publish_now() {
  publishing_ = false;
  publish_timer_.cancel();
  const Time began = now();
  config_.changed(summary());
  published_ = now();
  publish_cost_ = published_ - began;
}

}  // namespace hvd::driver

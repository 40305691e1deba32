// Simulated workers, hosts and network around the real Membership.
#include "membership/simulator.h"

#include <fmt/format.h>

#include <algorithm>

namespace hvd::membership::test {

Simulator::Simulator(uint64_t seed, Tally* tally, bool trace)
    : random_(seed), tally_(*tally), tracing_(trace) {
  config_.np = 1 + random_.below(3);
  config_.min_np = 1 + random_.below(static_cast<size_t>(config_.np));
  config_.max_np = random_.chance(30) ? 0 : config_.np + random_.below(3);
  config_.restart = !random_.chance(5);
  config_.spares = random_.chance(25) ? 1 + random_.below(2) : 0;
  config_.max_waiting = random_.below(3);
  config_.reset_limit = random_.chance(5) ? 1 + random_.below(4) : 0;
  config_.elastic_timeout = seconds(60);
  config_.start_timeout = seconds(20);
  config_.restart_delay_max = seconds(8);
  config_.blocklist_after = random_.chance(50) ? 1 + random_.below(4) : 100;
  if (random_.chance(50)) config_.blocklist_cooldown_min = config_.blocklist_cooldown_max = seconds(5);
  if (random_.chance(60)) config_.feed_timeout = milliseconds(500 + random_.below(9000));
  all_feed_ = !random_.chance(20);
  last_revision_ = random_.chance(50) ? 1 + static_cast<uint64_t>(random_.below(12)) : UINT64_MAX;
  driver_.emplace(config_, now_);
  note(fmt::format(
      "np {} min {} max {} restart {} reset_limit {} blocklist_after {} cooldown {:g} s, done at revision {}",
      config_.np, config_.min_np, config_.max_np, config_.restart, config_.reset_limit,
      config_.blocklist_after, to_seconds(config_.blocklist_cooldown_min), last_revision_));
}

std::optional<std::string> Simulator::run() {
  ++tally_.histories;
  set_hosts({{"a", config_.np}, {"b", random_.below(3)}});
  const int32_t steps = 20 + random_.below(200);
  const int32_t mischief = random_.below(12);  // some histories are quiet, some are wild
  for (int32_t i = 0; i < steps && active(); ++i) {
    if (random_.chance(mischief)) {
      disturb();
    } else if (random_.chance(4)) {
      pass_time(random_.chance(25));
    } else if (Process* p = pick()) {
      const int32_t what = random_.below(3);
      if (what == 0 && deliver_to_driver(*p)) continue;
      if (what <= 1 && deliver_to_worker(*p)) continue;
      if (step(*p)) continue;
      if (!deliver_to_driver(*p)) deliver_to_worker(*p);
    }
  }
  if (active()) calm_down();
  if (finished_ && !broken_) require(!driver_->next_tick(), "contract 8: an ended job wants to be woken");
  return broken_;
}

Simulator::Process* Simulator::pick() {
  const size_t n = processes_.size();
  if (n == 0) return nullptr;
  const size_t first = static_cast<size_t>(random_.below(n));
  for (size_t i = 0; i < n; ++i) {
    Process& p = processes_[(first + i) % n];
    if (p.where != Where::kGone || !p.outbox.empty()) return &p;
  }
  return nullptr;
}

void Simulator::disturb() {
  const int32_t what = random_.below(100);
  Process* p = pick();
  if (random_.chance(20)) return change_wishes();
  if (what < 35 || p == nullptr) return change_hosts();
  if (what < 40) return stale_message();
  if (what < 43) {  // a host goes down
    const std::string host = p->host;
    for (Process& q : processes_) {
      if (q.host == host && q.where != Where::kGone) die(q, LossKind::kConnectionClosed);
    }
    return;
  }
  if (what < 45) {  // everything goes down
    for (Process& q : processes_) {
      if (q.where != Where::kGone) die(q, LossKind::kConnectionClosed);
    }
    return;
  }
  if (p->where == Where::kGone) return;
  if (what < 65) return die(*p, random_.chance(20) ? LossKind::kExited : LossKind::kConnectionClosed);
  if (what < 70 && p->where != Where::kStarting) {  // it says that it goes
    note(fmt::format("worker {} leaves", p->id));
    p->outbox.push_back({ToDriver::kLost, 0, {}, 0, -1, LossKind::kLeft});
    p->where = Where::kGone;
    return;
  }
  if (what < 78) {
    note(fmt::format("worker {} {}", p->id, p->hung ? "continues" : "hangs"));
    p->hung = !p->hung;
    return;
  }
  if (what < 83 && p->hung && p->expected) {  // the heartbeat notices
    note(fmt::format("driver: worker {} is silent", p->id));
    const std::vector<uint64_t> before = inside();
    p->expected = false;
    const bool was_inside = std::count(before.begin(), before.end(), p->id) > 0;
    const bool must_abort = p->member && !p->done && !aborted_ && before.size() > (was_inside ? 1u : 0u);
    aborted_ = aborted_ || (p->member && !p->done);
    apply(driver_->worker_lost(p->id, LossKind::kSilent, "silent for 10 s", now_));
    require(!must_abort || saw_abort_, "contract 3: a member was lost and the others were not told at once");
    return;
  }
  if (what < 93 && (p->where == Where::kConnecting || p->where == Where::kReducing)) {
    const auto& members = generations_[p->generation].members;
    const int32_t rank = random_.below(members.size() + 1) - 1;
    note(fmt::format("worker {} loses its link to rank {}", p->id, rank));
    const bool unfit = p->where == Where::kConnecting && random_.chance(40);
    p->outbox.push_back({unfit ? ToDriver::kUnfit : ToDriver::kFailedLink, p->generation, {}, 0, rank});
    p->where = Where::kBlocked;
    return;
  }
  if (p->where == Where::kWaiting) {
    note(fmt::format("worker {} repeats ready", p->id));
    p->outbox.push_back({ToDriver::kReady, 0, p->last_ready});
  }
}

void Simulator::change_hosts() {
  static const char* const names[] = {"a", "b", "c", "d"};
  std::vector<HostSlots> hosts = hosts_;
  if (random_.chance(25)) {
    hosts = hosts_before_;  // the last change is undone
  } else {
    const std::string name = names[random_.below(4)];
    std::erase_if(hosts, [&](const HostSlots& h) { return h.name == name; });
    const int32_t slots = random_.below(4);
    if (slots > 0) hosts.insert(hosts.begin() + random_.below(hosts.size() + 1), {name, slots});
    if (random_.chance(20)) std::reverse(hosts.begin(), hosts.end());  // order alone means nothing
  }
  set_hosts(std::move(hosts));
}

/// What a worker, its host's agent or an operator wishes.
void Simulator::change_wishes() {
  const int32_t what = random_.below(100);
  const Duration timeout = random_.chance(30) ? milliseconds(random_.below(3000)) : seconds(30);
  Process* p = pick();
  if (what < 40 && p != nullptr && p->where != Where::kGone) {
    note(fmt::format("worker {} asks to leave", p->id));
    p->outbox.push_back({ToDriver::kLeaving, 0, {}, 0, -1, LossKind::kLeft, timeout});
    return;
  }
  static const char* const names[] = {"a", "b", "c", "d", "e"};
  const std::string host = names[random_.below(5)];
  Answer answer;
  if (what < 55) {
    note(fmt::format("drain {} within {:g} s", host, to_seconds(timeout)));
    const bool is_there =
        std::any_of(hosts_.begin(), hosts_.end(), [&](const auto& h) { return h.name == host; }) ||
        std::any_of(processes_.begin(), processes_.end(),
                    [&](const Process& q) { return q.expected && q.host == host; });
    if (is_there) {
      drained_hosts_.insert(host);
      for (Process& q : processes_) {
        if (!q.expected || q.host != host) continue;
        if (!q.leaves) q.drained = true;
        worker_leaves(q, timeout);
      }
    }
    apply(driver_->drain(host, timeout, "", now_, &answer));
    require(answer.accepted == is_there,
            "contract 15: a host was drained that is not there, or not one that is");
  } else if (what < 70) {
    note("undrain " + host);
    const bool was = drained_hosts_.erase(host) +
                         std::erase_if(drained_slots_, [&](const auto& s) { return s.first == host; }) >
                     0;
    for (Process& q : processes_) {
      if (was && q.host == host && std::exchange(q.drained, false)) q.leaves = false;
    }
    apply(driver_->undrain(host, now_, &answer));
    require(answer.accepted == was, "contract 15: a host was undrained that was not drained");
  } else if (what < 80) {
    const int32_t size = random_.below(7);
    note(fmt::format("scale to {}", size));
    const bool fits = size >= config_.min_np && (config_.max_np == 0 || size <= config_.max_np);
    if (fits) scaled_ = size;
    tally_.scaled += fits ? 1 : 0;
    apply(driver_->scale(size, now_, &answer));
    require(answer.accepted == fits,
            "contract 15: a size was taken that does not fit, or one that does refused");
  } else {
    const int32_t slot = random_.chance(50) ? -1 : random_.below(3);
    note(fmt::format("a worker comes to {}:{}", host, slot));
    Arrival arrival;
    std::vector<Action> actions = driver_->worker_arrived(host, slot, now_, &arrival);
    if (arrival.worker != 0) {
      ++tally_.arrivals;
      require(arrival.worker == processes_.size() + 1, "worker ids grow by one from 1");
      require(slot < 0 || arrival.slot == slot, "contract 11: a worker got another slot than it has");
      require(!drained_hosts_.contains(host), "contract 15: a worker was let in on a drained host");
      require(!any_done_, "a worker was let in though the job is finishing");
      Process q;
      q.id = arrival.worker;
      q.host = host;
      q.slot = arrival.slot;
      q.own_place = true;
      q.started = now_;
      q.flavour = flavour_of_job();
      for (const Process& other : processes_) {
        require(!(other.expected && other.host == q.host && other.slot == q.slot),
                "two living workers in one slot");
      }
      processes_.push_back(std::move(q));
    } else {
      require(!arrival.refusal.empty(), "contract 11: refused without a reason");
      require(arrival.occupant == 0 || at(arrival.occupant).expected,
              "contract 11: refused for one that is gone");
    }
    apply(std::move(actions));
  }
}

void Simulator::worker_leaves(Process& p, Duration timeout) {
  if (p.leaves && p.leaves_by <= now_ + timeout) return;
  p.leaves = true;
  p.leaves_by = now_ + timeout;
}

void Simulator::set_hosts(std::vector<HostSlots> hosts) {
  std::erase_if(hosts, [](const HostSlots& h) { return h.slots <= 0; });
  const auto sorted = [](std::vector<HostSlots> list) {
    std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return list;
  };
  const bool real = sorted(hosts) != sorted(hosts_);
  if (tracing_) {
    std::string line = "hosts:";
    for (const HostSlots& h : hosts) line += fmt::format(" {}:{}", h.name, h.slots);
    note(line);
  }
  hosts_before_ = std::exchange(hosts_, hosts);
  std::erase_if(drained_slots_, [&](const auto& s) {
    return std::none_of(hosts_.begin(), hosts_.end(), [&](const auto& h) { return h.name == s.first; });
  });
  const uint64_t epoch = driver_->epoch();
  const bool running = driver_->phase() == Phase::kRunning && !inside().empty();
  apply(driver_->hosts_changed(std::move(hosts), now_));
  if (!real) require(driver_->epoch() == epoch, "contract 2: an epoch without a change of hosts");
  if (real) require(driver_->epoch() > epoch, "contract 2: a change of hosts without an epoch");
  if (real && running)
    require(saw_notify_ || finished_, "contract 2: a change of hosts that nobody was told");
}

void Simulator::pass_time(bool to_next_tick) {
  const std::optional<Time> next = driver_->next_tick();
  if (next) require(*next > now_, "contract 12: a deadline that has passed and is still waited for");
  if (to_next_tick) {
    if (!next) return;
    now_ = *next;
  } else {
    now_ += milliseconds(random_.below(1500));
  }
  note(fmt::format("time {:g} s", to_seconds(now_.time_since_epoch())));
  apply(driver_->tick(now_));
}

bool Simulator::deliver_to_driver(Process& p) {
  if (p.outbox.empty() || (p.hung && p.where != Where::kGone)) return false;
  const ToDriver m = std::move(p.outbox.front());
  p.outbox.pop_front();
  const bool known = p.expected;
  const uint64_t generation = driver_->generation();
  if (m.kind == ToDriver::kReady) {
    note(fmt::format("driver: worker {} ready, left {}, revision {}", p.id, m.ready.left_generation,
                     m.ready.revision));
    if (known && (!p.member || m.ready.left_generation == generation)) {
      if (!p.ready) p.ready_since = now_;
      p.ready = true;
      p.feeds = m.ready.feeds;
      p.heard = m.ready;
      p.said_state = m.ready.has_state;
    }
    apply(driver_->worker_ready(p.id, m.ready, now_));
  } else if (m.kind == ToDriver::kSynced) {
    note(fmt::format("driver: worker {} synced in {}", p.id, m.generation));
    if (known && p.member && m.generation == generation) {
      p.synced = p.ever_synced = p.said_state = state_exists_ = true;
    }
    apply(driver_->worker_synced(p.id, m.generation, m.ready.revision, now_));
  } else if (m.kind == ToDriver::kFailedLink) {
    note(fmt::format("driver: worker {} failed link in {}", p.id, m.generation));
    const bool current = known && p.member && !p.ready && m.generation == generation && !aborted_;
    aborted_ = aborted_ || current;
    apply(driver_->worker_failed_link(p.id, m.generation, m.rank, "connection reset", now_));
    require(saw_abort_ == current,
            "contract 3: a broken link of the current generation aborts it, another does not");
  } else if (m.kind == ToDriver::kOffer) {
    note(fmt::format("driver: worker {} offers to feed in {}", p.id, m.generation));
    if (known && p.member && m.generation == generation) p.offered_in = generation;
    ++tally_.offers;
    FeedOffer offer;
    if (m.works) offer.endpoint = fmt::format("host{}:1", p.id);
    refused_to_feed_ = refused_to_feed_ || !m.works;
    apply(driver_->feed_offered(p.id, m.generation, offer, now_));
  } else if (m.kind == ToDriver::kFed) {
    note(fmt::format("driver: worker {} is fed by {}", p.id, m.source));
    const bool counts = m.works || (p.fed_in == generation && driver_->phase() == Phase::kRunning);
    if (known && !p.member && p.fed_from == m.source && counts) {
      p.fed = true;
      ++tally_.fed;
    }
    FedEvent event;
    event.source = m.source;
    if (!m.works) event.failure = "connection refused";
    apply(driver_->worker_fed(p.id, event, now_));
  } else if (m.kind == ToDriver::kUnfit) {
    unfit(p, m);
  } else if (m.kind == ToDriver::kDone) {
    note(fmt::format("driver: worker {} done in {}", p.id, m.generation));
    if (known && p.member && m.generation == generation) {
      any_done_ = p.done = true;
      p.expected = false;
    }
    apply(driver_->worker_done(p.id, m.generation, now_));
  } else if (m.kind == ToDriver::kLeaving) {
    note(fmt::format("driver: worker {} leaves within {:g} s", p.id, to_seconds(m.timeout)));
    if (known) {
      worker_leaves(p, m.timeout);
      if (!p.own_place && listed(p)) drained_slots_.insert({p.host, p.slot});
    }
    apply(driver_->worker_leaving(p.id, m.timeout, "", now_));
  } else {
    note(fmt::format("driver: worker {} lost", p.id));
    const bool member = known && p.member;
    p.expected = false;
    const bool must_abort = member && !aborted_ && !inside().empty();
    aborted_ = aborted_ || member;
    apply(driver_->worker_lost(p.id, m.loss, "", now_));
    require(saw_abort_ == must_abort,
            "contract 3: a lost member aborts the generation at once, nobody else does");
  }
  return true;
}

// contract 16: of the two that do not fit each other the newer one goes, and nobody who was ever synced for
// one who never was.
void Simulator::unfit(Process& accuser, const ToDriver& m) {
  note(fmt::format("driver: worker {} says that rank {} does not fit in {}", accuser.id, m.rank,
                   m.generation));
  const bool member = accuser.expected && accuser.member && m.generation == driver_->generation();
  const bool current = member && !accuser.ready && !aborted_;
  Process* accused = nullptr;
  if (member && m.rank >= 0 && m.rank != accuser.rank) {
    const auto& members = generations_[m.generation].members;
    if (static_cast<size_t>(m.rank) < members.size()) accused = &at(members[static_cast<size_t>(m.rank)]);
  }
  const bool gone = accused != nullptr && !(accused->expected && accused->member);
  Process* goes = nullptr;
  if (accused != nullptr && !gone && !(accuser.ever_synced && accused->ever_synced)) {
    goes =
        accused->ever_synced || (!accuser.ever_synced && accuser.rank > accused->rank) ? &accuser : accused;
  }
  unfit_ = goes == nullptr ? 0 : goes->id;
  const bool others = goes != nullptr && inside().size() > (goes->ready ? 0u : 1u);
  const bool must_abort = goes != nullptr ? !aborted_ && others : !gone && current;
  aborted_ = aborted_ || goes != nullptr || must_abort;
  apply(driver_->worker_unfit(accuser.id, m.generation, m.rank, "another backend", now_));
  require(unfit_ == 0, "contract 16: a worker that does not fit was kept");
  require(saw_abort_ == must_abort, "contract 3: a generation that can't connect is aborted, another is not");
}

// contract 11: stale and foreign messages change nothing.
void Simulator::stale_message() {
  const uint64_t generation = driver_->generation(), epoch = driver_->epoch();
  const Phase phase = driver_->phase();
  const int32_t size = driver_->size();
  const std::string waiting = driver_->waiting_for();
  uint64_t id = 1 + static_cast<uint64_t>(random_.below(processes_.size() + 2));
  const bool known = id <= processes_.size() && at(id).expected;
  const bool member = known && at(id).member;
  const int32_t what = random_.below(5);
  note(fmt::format("driver: stale message {} of worker {}", what, id));
  std::vector<Action> actions;
  if (what == 0) actions = driver_->worker_ready(id, {generation + 1, true, 99, {}, "x"}, now_);
  if (what == 1 && (!known || (member && generation > 1))) {
    actions = driver_->worker_ready(id, {known ? generation - 1 : generation, true, 99, {}, "x"}, now_);
  }
  if (what == 2)
    actions = driver_->worker_synced(
        id, known ? generation - (generation > 0) + 7 * (generation == 0) : generation, 99, now_);
  if (what == 3)
    actions = driver_->worker_failed_link(id, known ? generation + 1 : generation, 0, "stale", now_);
  if (what == 4) actions = driver_->worker_done(id, known ? generation + 1 : generation, now_);
  for (const Action& a : actions)
    require(std::holds_alternative<Refuse>(a), "contract 11: a stale message had an effect");
  require(driver_->generation() == generation && driver_->epoch() == epoch && driver_->phase() == phase &&
              driver_->size() == size && driver_->waiting_for() == waiting,
          "contract 11: a stale message changed the job");
  if (!known && (what == 0 || what == 1) && (id > processes_.size() || !at(id).done)) {
    require(!actions.empty(), "contract 11: a worker that is not expected was not refused");
  }
  tally_.refusals += actions.size();
}

/// No more faults, and slots enough: the job must come to rest in bounded time, running or ended.
void Simulator::calm_down() {
  note("---- calm ----");
  for (Process& p : processes_) {
    if (!p.hung) continue;
    p.hung = false;
  }
  all_fit_ = true;
  for (const char* host : {"a", "z"}) {
    Answer ignored;
    std::erase_if(drained_slots_, [&](const auto& s) { return s.first == host; });
    for (Process& p : processes_) {
      if (p.host == host && std::exchange(p.drained, false)) p.leaves = false;
    }
    drained_hosts_.erase(host);
    apply(driver_->undrain(host, now_, &ignored));
  }
  if (!active()) return;
  set_hosts({{"a", 1}, {"z", config_.np + 1}});
  calm_ = true;
  size_t ticks = 0;
  size_t quiet = 0;
  for (size_t i = 0; active(); ++i) {
    if (i > 3000 || ticks > 300) return require(false, "contract 12: the job comes to no rest");
    const uint64_t generation = driver_->generation(), epoch = driver_->epoch();
    bool moved = false;
    for (size_t n = 0; n < processes_.size() && active(); ++n) {
      Process& p = processes_[n];
      while (active() && deliver_to_driver(p)) moved = true;
      while (active() && deliver_to_worker(p)) moved = true;
      if (active()) moved = step(p) || moved;
    }
    const bool changed = driver_->generation() != generation || driver_->epoch() != epoch;
    quiet = changed ? 0 : quiet + 1;
    if (moved && !(quiet > 12 && stable())) continue;
    if (!active()) return;
    if (!driver_->next_tick()) break;
    ++ticks;
    quiet = 0;
    pass_time(true);
  }
  if (!active()) return;
  ++tally_.running;
  require(driver_->phase() == Phase::kRunning, "contract 12: the job waits for nothing that could happen");
  check_target();
}

bool Simulator::stable() {
  if (last_revision_ != UINT64_MAX) return false;  // such a job comes to its end
  for (const Process& p : processes_) {
    if (p.where == Where::kGone ? !p.outbox.empty() : !p.inbox.empty()) return false;
  }
  return driver_->phase() == Phase::kRunning && !told_interrupt_;
}

}  // namespace hvd::membership::test

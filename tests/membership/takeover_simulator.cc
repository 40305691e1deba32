// A job whose driver dies again and again: its course, what a driver asks for, and what must hold at rest.
#include "membership/takeover_simulator.h"

#include <fmt/format.h>

#include <algorithm>

namespace hvd::membership::test {

TakeoverSimulator::TakeoverSimulator(uint64_t seed, TakeoverTally* tally, bool trace)
    : random_(seed), tally_(*tally), tracing_(trace) {
  config_.np = 1 + random_.below(4);
  config_.min_np = 1 + random_.below(static_cast<size_t>(config_.np));
  config_.max_np = random_.chance(30) ? 0 : config_.np + random_.below(3);
  config_.spares = random_.chance(15) ? 1 : 0;
  config_.elastic_timeout = seconds(60);
  config_.start_timeout = seconds(20);
  config_.restart_delay_max = seconds(8);
  config_.blocklist_after = 100;
  only_drivers_die_ = random_.chance(40);
  shared_ = only_drivers_die_ || random_.chance(50);
  prompt_ = random_.chance(50);
  last_revision_ = random_.chance(40) ? 1 + static_cast<uint64_t>(random_.below(12)) : UINT64_MAX;
  note(fmt::format("np {} min {} max {}, done at revision {}{}", config_.np, config_.min_np, config_.max_np,
                   last_revision_, only_drivers_die_ ? ", only drivers die" : ""));
  term_ = 1;
  driver_.emplace(config_, driver_time());
}

TakeoverSimulator::Process* TakeoverSimulator::find(uint64_t id) {
  const auto found = processes_.find(id);
  return found == processes_.end() ? nullptr : &found->second;
}

std::optional<std::string> TakeoverSimulator::run() {
  ++tally_.histories;
  journal_ = encode(TermBegan{term_, "job", ""});
  ends_ = {journal_.size()};
  set_hosts({{"a", config_.np}, {"b", random_.below(3)}});
  const int32_t steps = 20 + random_.below(300);
  const int32_t mischief = only_drivers_die_ ? 0 : random_.below(8);
  const int32_t deaths = 1 + random_.below(6);  // of drivers, in a hundred steps
  for (int32_t i = 0; i < steps && active(); ++i) {
    if (random_.chance(deaths)) {
      crash();
    } else if (random_.chance(mischief)) {
      disturb();
    } else if (older_ && random_.chance(15)) {
      older_step();
    } else if (random_.chance(only_drivers_die_ ? 2 : 5)) {
      pass_time(!only_drivers_die_ && random_.chance(25));
    } else if (!processes_.empty()) {
      auto p = processes_.begin();
      std::advance(p, random_.below(processes_.size()));
      move(p->second);
    }
  }
  if (active()) calm_down();
  return broken_;
}

void TakeoverSimulator::disturb() {
  const int32_t what = random_.below(100);
  if (what < 40) {
    static const char* const names[] = {"a", "b", "c"};
    std::vector<HostSlots> hosts = hosts_;
    const std::string name = names[random_.below(3)];
    std::erase_if(hosts, [&](const HostSlots& h) { return h.name == name; });
    if (const int32_t slots = random_.below(4); slots > 0) hosts.push_back({name, slots});
    return set_hosts(std::move(hosts));
  }
  if (processes_.empty()) return;
  auto p = processes_.begin();
  std::advance(p, random_.below(processes_.size()));
  if (p->second.where == Where::kGone) return;
  if (what < 75) return die(p->second, true);
  // Driver and worker in the same moment.
  ++tally_.worker_died_too;
  die(p->second, false);
  crash();
}

void TakeoverSimulator::set_hosts(std::vector<HostSlots> hosts) {
  std::erase_if(hosts, [](const HostSlots& h) { return h.slots <= 0; });
  hosts_ = std::move(hosts);
  if (tracing_) {
    std::string line = "hosts:";
    for (const HostSlots& h : hosts_) line += fmt::format(" {}:{}", h.name, h.slots);
    note(line);
  }
  take(driver_->hosts_changed(hosts_, driver_time()));
}

/// But those that a stopped driver still holds.
void TakeoverSimulator::all_come_back() {
  for (auto& [id, p] : processes_) {
    connect(p);
    while (active() && p.term == term_ && deliver_up(p)) {}
    if (!active()) return;
  }
}

void TakeoverSimulator::pass_time(bool to_next_tick) {
  if (prompt_ && driver_->gathering()) all_come_back();
  if (!active()) return;
  // Who lives comes back within the settle time: where no journal tells, nothing else would.
  for (auto& [id, p] : processes_) {
    if (!lossy_ || !driver_->may_come_back()) break;
    connect(p);
    while (active() && deliver_up(p)) {}
    if (!active()) return;
  }
  const std::optional<Time> next = driver_->next_tick();
  if (next) require(*next > driver_time(), "contract 12: a deadline that has passed and is still waited for");
  if (to_next_tick) {
    if (!next) return;
    now_ += *next - driver_time();
  } else {
    now_ += milliseconds(random_.below(only_drivers_die_ ? 200 : 1500));
  }
  note(fmt::format("time {:g} s", to_seconds(now_.time_since_epoch())));
  take(driver_->tick(driver_time()));
}

void TakeoverSimulator::take(std::vector<Action> actions) {
  if (broken_ || finished_) return;
  std::vector<Record> records;
  driver_->take_records(&records);
  for (const Record& r : records) {
    journal_ += encode(r);
    ends_.push_back(journal_.size());
  }
  for (const Action& action : actions) {
    std::visit([&](const auto& a) { act(a); }, action);
    if (broken_) return;
  }
}

void TakeoverSimulator::act(const StartWorker& a) {
  note(fmt::format("  start worker {} on {}:{}", a.worker, a.host, a.slot));
  require(!processes_.contains(a.worker), "contract 11: an identity was used twice");
  for (const auto& [id, p] : processes_) {
    // Whom no journal told of, and who came too late, is refused when it comes.
    // Of two drivers none knows what the other one starts.
    const bool lives =
        p.where != Where::kGone && !p.told_end && !p.forgotten && driver_->expects(id) && id != a.worker;
    require(!lives || p.host != a.host || p.slot != a.slot, "a worker was started in a slot where one lives");
  }
  Process& p = processes_[a.worker];
  p.id = a.worker;
  p.host = a.host;
  p.slot = a.slot;
  p.term = p.newest_term = term_;
}

void TakeoverSimulator::act(const StopWorker& a) {
  note(fmt::format("  stop worker {}: {}", a.worker, a.reason));
  require(!a.reason.empty(), "a worker was stopped without a reason");
  require(!only_drivers_die_ || finished_ || a.reason.find("maximum") != std::string::npos,
          "contract 14: a worker was stopped though nothing but drivers died");
  Process* p = find(a.worker);
  if (a.reason.starts_with("did not come back") && !older_acts_ && driver_time() < began_ + kSettle.longest) {
    ++tally_.early;
    require(!prompt_ || p == nullptr || p->where == Where::kGone || p->told_end || has_older(*p),
            "contract 19: a worker that lives was not waited for");
  }
  if (p == nullptr) return;  // its start was its driver's last word
  p->told_end = p->told_end || !older_acts_ || p->term == term_;
  if (p->term == term_) {
    p->down.push_back({ToWorker::kEnd});
  } else if (p->where != Where::kGone && !older_acts_) {
    die(*p, false);  // its process is ended
  }
}

void TakeoverSimulator::act(const Assign& a) {
  if (tracing_) {
    std::string line = fmt::format("  generation {}, epoch {}, root {}:", a.generation, a.epoch, a.root);
    for (const Member& m : a.members()) line += fmt::format(" {}", m.worker);
    note(line);
  }
  ++tally_.generations;
  const Instance instance{a.generation, term_};
  require(!generations_.contains(instance), "contract 11: generations are numbered one after another");
  Generation& g = generations_[instance];
  const Member& root = a.members()[static_cast<size_t>(a.root)];
  g.revision = root.revision;
  std::set<uint64_t> in;
  for (const Member& m : a.members()) {
    in.insert(m.worker);
    g.members.push_back(m.worker);
    Process* p = find(m.worker);
    const bool there = p != nullptr && p->term == term_;
    // An older driver that goes on may not have read yet who has left it.
    require(there || older_acts_, "contract 11: a place for a worker that is not there");
    if (broken_) return;
    if (!there) continue;
    require(a.generation > p->instance.first, "contract 11: a number that a member has used already");
    p->down.push_back({ToWorker::kAssign, instance, a.epoch});
  }
  require(in.size() == a.members().size(), "a worker has two ranks");
}

void TakeoverSimulator::act(const Abort& a) {
  note(fmt::format("  abort {}: {}", a.generation, a.reason));
  // A generation that was being formed when the driver died can't go on if one member never learnt of it.
  if (a.reason.find("never learnt") != std::string::npos ||
      a.reason.find("newer generation") != std::string::npos)
    unlearnt_.insert(a.generation);
  require(!only_drivers_die_ || unlearnt_.contains(a.generation),
          "contract 14: a generation was lost though nothing but drivers died");
  for (const uint64_t id : a.to) {
    if (Process* p = find(id); p != nullptr && p->term == term_)
      p->down.push_back({ToWorker::kAbort, {a.generation, term_}});
  }
}

void TakeoverSimulator::act(const Notify& a) {
  note(fmt::format("  notify epoch {} interrupt {}", a.epoch, a.interrupt));
  for (const uint64_t id : a.to) {
    if (Process* p = find(id); p != nullptr && p->term == term_)
      p->down.push_back({ToWorker::kNotify, {}, a.epoch, a.interrupt});
  }
}

void TakeoverSimulator::act(const Refuse& a) {
  note(fmt::format("  refuse worker {}: {}", a.worker, a.reason));
  require(!only_drivers_die_, "contract 14: a worker was refused though nothing but drivers died");
  if (Process* p = find(a.worker)) {
    if (p->term != term_) return;
    p->told_end = true;
    p->down.push_back({ToWorker::kEnd});
  }
}

void TakeoverSimulator::act(const Finish& a) {
  note(fmt::format("  finish {}: {}", a.success, a.sentence));
  if (older_acts_) {  // it tells those that it has
    for (auto& [id, p] : processes_) {
      if (p.term == term_ && p.where != Where::kGone) p.down.push_back({ToWorker::kEnd});
    }
    return;
  }
  finished_ = true;
  (a.success ? tally_.successes : tally_.failures)++;
  if (a.success) require(any_done_, "contract 8: success though nobody is done");
  require(a.success || !only_drivers_die_, "contract 14: the job failed though nothing but drivers died");
}

void TakeoverSimulator::calm_down() {
  end_older();
  note("---- calm ----");
  if (!active()) return;
  if (!only_drivers_die_) set_hosts({{"a", 1}, {"z", config_.np + 1}});
  calm_ = true;
  size_t ticks = 0;
  for (size_t i = 0; active(); ++i) {
    if (i > 4000 || ticks > 400) return require(false, "contract 12: the job comes to no rest");
    bool moved = false;
    std::vector<uint64_t> ids;
    for (const auto& [id, p] : processes_) ids.push_back(id);
    for (const uint64_t id : ids) {
      Process& p = processes_.at(id);
      while (active() && deliver_up(p)) moved = true;
      while (active() && deliver_down(p)) moved = true;
      if (active()) moved = connect(p) || step(p) || moved;
      if (active() && p.where != Where::kGone && peer_is_gone(p) &&
          (p.where == Where::kConnecting || p.where == Where::kReducing))
        moved = true;
    }
    if (moved) continue;
    if (!active()) return;
    if (!driver_->next_tick()) break;
    ++ticks;
    pass_time(true);
  }
  if (!active()) return;
  ++tally_.at_rest;
  require(driver_->phase() == Phase::kRunning, "contract 12: the job waits for nothing that could happen");
  check_rest();
}

void TakeoverSimulator::check_rest() {
  std::set<Instance> instances;
  int32_t inside = 0;
  for (const auto& [id, p] : processes_) {
    if (!driver_->is_member(id)) continue;
    require(p.where != Where::kGone && p.instance.first == driver_->generation() && !p.left && p.synced,
            "at rest a member is not at work");
    instances.insert(p.instance);
    ++inside;
  }
  require(instances.size() == 1, "at rest the members are in different generations");
  require(inside == driver_->size(), "at rest the driver counts other members");
  require(inside >= driver_->usable_slots(driver_time()), "contract 2: at rest a usable slot is empty");
  for (const auto& [id, p] : processes_) {
    require(p.where == Where::kGone || driver_->expects(id), "at rest a worker is left that nobody expects");
  }
}

}  // namespace hvd::membership::test

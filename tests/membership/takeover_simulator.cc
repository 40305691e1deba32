// Simulated workers around drivers that die and are replaced.
#include "membership/takeover_simulator.h"

#include <fmt/format.h>

#include <algorithm>

namespace hvd::membership::test {
namespace {

constexpr Duration kSettle = std::chrono::seconds(5);

}  // namespace

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

void TakeoverSimulator::exchange_drivers() {
  std::swap(driver_, older_->driver);
  std::swap(term_, older_->term);
  std::swap(offset_, older_->offset);
  std::swap(journal_, older_->journal);
  std::swap(ends_, older_->ends);
  older_acts_ = !older_acts_;
}

template <class Act>
auto TakeoverSimulator::as_older(Act act) {
  note(fmt::format("the driver of term {}:", older_->term));
  exchange_drivers();
  const auto result = act();
  exchange_drivers();
  return result;
}

/// The driver is stopped, or cut off from some of its workers, and not dead.
void TakeoverSimulator::leave_behind() {
  end_older();
  ++tally_.two_drivers;
  const int32_t cut = random_.below(101);
  for (auto& [id, p] : processes_) p.cut = p.term == term_ && random_.chance(cut);
  older_.emplace(Older{std::move(driver_), term_, offset_, journal_, ends_});
}

/// It has learnt of the newer one, or it is dead after all. What it had sent may still arrive.
void TakeoverSimulator::end_older() {
  if (!older_) return;
  note(fmt::format("---- the driver of term {} ends", older_->term));
  for (auto& [id, p] : processes_) {
    if (!has_older(p)) continue;
    for (size_t lost = static_cast<size_t>(random_.below(p.down.size() + 1)); lost > 0; --lost)
      p.down.pop_back();
    while (!p.down.empty() && p.where != Where::kGone) deliver_down(p);
    p.up.clear();
    p.term = 0;
    p.cut = false;
  }
  older_.reset();
}

void TakeoverSimulator::older_step() {
  const int32_t what = random_.below(100);
  if (what < 4) return end_older();  // by who followed it, or by the journal
  auto p = processes_.begin();
  if (what < 60 && !processes_.empty()) {
    std::advance(p, random_.below(processes_.size()));
    Process& q = p->second;
    if (has_older(q) && what < 25) {
      q.cut = true;
      if (shared_) return;
      as_older([&] {
        if (driver_->expects(q.id))
          take(driver_->worker_lost(q.id, LossKind::kConnectionClosed, "cut off", driver_time()));
        return 0;
      });
      return;
    }
    if (q.newest_term > older_->term) {
      if (q.term == 0 && what < 30) end_older();  // it has dialled the older one, which hears of the newer
      return;
    }
    if (!has_older(q) || q.cut || q.up.empty()) return;
    if (shared_) return end_older();
    ++tally_.acts_of_older;
    as_older([&] { return deliver_up(q); });
    return;
  }
  if (shared_) return end_older();
  ++tally_.acts_of_older;
  as_older([&] {
    take(driver_->tick(driver_time()));
    return 0;
  });
}

KnownJob TakeoverSimulator::know(const Journal& journal, bool told) {
  KnownJob known = journal.job;
  known.told = known.told && told;
  // As the driver does, which knows its term even so: nobody tells which identities were used.
  if (!known.told) known.next_worker = std::max(known.next_worker, term_ * 1'000'000);
  return known;
}

void TakeoverSimulator::begin(const KnownJob& known) {
  driver_.emplace(config_, known, kSettle, driver_time());
  journal_ = encode(TermBegan{term_, "job", ""}) + encode(driver_->known());
  ends_ = {journal_.size()};
}

/// Nothing that a driver has done is missing in what its journal comes to.
void TakeoverSimulator::check_journal(const KnownJob& job) {
  const KnownJob known = driver_->known();
  const auto ids = [](const std::vector<KnownWorker>& workers) {
    std::set<uint64_t> all;
    for (const KnownWorker& w : workers) all.insert(w.worker);
    return all;
  };
  const auto synced = [](const std::vector<KnownWorker>& workers) {
    std::set<uint64_t> all;
    for (const KnownWorker& w : workers) {
      if (w.ever_synced) all.insert(w.worker);
    }
    return all;
  };
  const std::string lacks = "contract 14: the journal tells something else of ";
  require(job.generation == known.generation && job.members == known.members, lacks + "the generation");
  require(ids(job.workers) == ids(known.workers), lacks + "who was started and has not ended");
  require(std::set(job.done.begin(), job.done.end()) == std::set(known.done.begin(), known.done.end()),
          lacks + "who is done");
  // Later ones also know what workers have said that came back, and will say again.
  require(term_ > 1 || synced(job.workers) == synced(known.workers), lacks + "who was synced");
  require(job.aborted == known.aborted, lacks + "whether the generation is lost");
}

/// The driver dies after any event; the next one has what is left of its journal.
void TakeoverSimulator::crash() {
  ++tally_.takeovers;
  const bool lives_on = random_.chance(25);
  std::string bytes = journal_;
  const int32_t what = only_drivers_die_ ? 0 : random_.below(100);
  if (what >= 95) {
    bytes.clear();
    ++tally_.empty;
  } else if (what >= 90) {
    const size_t at = static_cast<size_t>(random_.below(bytes.size()));
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random_.below(8)));
    ++tally_.damaged;
  } else if (what >= 50) {  // the last records never reached the disk
    const size_t lost = static_cast<size_t>(random_.below(std::min<size_t>(ends_.size(), 6)));
    bytes.resize(ends_[ends_.size() - 1 - lost]);
    if (what >= 70 && lost > 0)
      bytes += journal_.substr(bytes.size(), 1 + static_cast<size_t>(random_.below(9)));
    ++tally_.torn;
  }
  const Journal journal = read_journal(bytes);
  before_ = driver_->generation();
  if (what < 50 && journal.job.told && !older_) check_journal(journal.job);
  // Whatever is left in the journal, its name tells the term; without any, the workers do, or who keeps the
  // driver.
  if (lives_on) leave_behind();
  ++term_;
  offset_ = seconds(random_.below(100000)) - seconds(50000);  // another machine's clock, or one that was set
  note(fmt::format("---- driver of term {}: {} records, {}", term_, journal.records,
                   journal.job.told ? "whole" : "not whole"));
  driver_.reset();
  for (auto& [id, p] : processes_) {
    if (has_older(p)) continue;
    // What was under way may still arrive, or not.
    for (size_t lost = static_cast<size_t>(random_.below(p.down.size() + 1)); lost > 0; --lost)
      p.down.pop_back();
    while (!p.down.empty() && p.where != Where::kGone) deliver_down(p);
    p.up.clear();
    p.term = 0;
  }
  if (broken_) return;
  if (journal.job.finish) {
    finished_ = true;  // it only tells
    return;
  }
  // Else the machine may have stopped with it.
  const bool told = what < 50 && !older_;
  lossy_ = lossy_ || what >= 50;
  const bool both = !older_ && !shared_ && random_.chance(10);
  if (both) {  // somebody stands by and somebody follows, and each takes over
    begin(know(journal, false));
    older_.emplace(Older{std::move(driver_), term_, offset_, journal_, ends_});
    ++tally_.two_drivers;
    ++term_;
    as_older([&] {
      take(driver_->hosts_changed(hosts_, driver_time()));
      return 0;
    });
    if (!active()) return;
  }
  KnownJob known = know(journal, told && !both);
  if (tracing_) {
    std::string line =
        fmt::format("  known: generation {}{}, members", known.generation, known.aborted ? ", aborted" : "");
    for (const uint64_t id : known.members) line += fmt::format(" {}", id);
    line += "; workers";
    for (const KnownWorker& w : known.workers) line += fmt::format(" {}", w.worker);
    line += "; done";
    for (const uint64_t id : known.done) line += fmt::format(" {}", id);
    note(line);
  }
  begin(known);
  for (auto& [id, p] : processes_)
    p.forgotten = p.forgotten || !driver_->expects(id) || p.where == Where::kDone;
  // Whose process has ended is told by whoever is its parent.
  for (auto& [id, p] : processes_) {
    if (p.where == Where::kGone && driver_->expects(id) && random_.chance(60))
      take(driver_->worker_lost(id, LossKind::kExited, "exited meanwhile", driver_time()));
    if (broken_ || finished_) return;
  }
  take(driver_->hosts_changed(hosts_, driver_time()));
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

void TakeoverSimulator::pass_time(bool to_next_tick) {
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

bool TakeoverSimulator::move(Process& p) {
  const int32_t what = random_.below(3);
  if (has_older(p) && !p.cut) {
    if (!shared_ && !p.up.empty() && random_.chance(60)) return as_older([&] { return deliver_up(p); });
    return deliver_down(p) || step(p);
  }
  if (what == 0 && deliver_up(p)) return true;
  if (what <= 1 && deliver_down(p)) return true;
  return step(p) || connect(p) || deliver_up(p) || deliver_down(p);
}

bool TakeoverSimulator::connect(Process& p) {
  if (p.where == Where::kGone || p.term == term_ || (has_older(p) && !p.cut)) return false;
  p.term = p.newest_term = term_;
  p.cut = false;
  p.up.clear();
  p.down.clear();
  if (!driver_->expects(p.id) && !driver_->may_come_back() &&
      p.where != Where::kDone) {  // as the server's admission does
    note(fmt::format("worker {} is refused: not expected", p.id));
    require(!only_drivers_die_, "contract 14: a worker was refused though nothing but drivers died");
    die(p, false);
    return true;
  }
  note(fmt::format("worker {} connects", p.id));
  BackEvent back;
  back.generation = p.instance.first;
  back.rank = p.rank;
  back.size = p.size;
  back.synced = p.synced;
  back.has_state = p.ever_synced;
  back.left = p.left;
  back.lost = p.lost;
  back.interrupt = p.interrupt && p.epoch > p.assigned_epoch;
  back.epoch = p.epoch;
  back.revision = p.revision;
  back.slot_host = p.host;
  back.slot = p.slot;
  if (p.last_ready) back.last = *p.last_ready;
  p.up.push_back({ToDriver::kBack, p.instance.first, back});
  if (p.left && p.last_ready) p.up.push_back({ToDriver::kReady, 0, {}, *p.last_ready});
  if (p.failure && !p.left) p.up.push_back({ToDriver::kFailedLink, p.instance.first, {}, {}, 0, *p.failure});
  p.failure.reset();
  if (p.where == Where::kDone) p.up.push_back({ToDriver::kDone, p.instance.first});
  return true;
}

bool TakeoverSimulator::deliver_up(Process& p) {
  if (p.up.empty() || p.where == Where::kGone || p.term != term_) return false;
  const ToDriver m = std::move(p.up.front());
  p.up.pop_front();
  const Time t = driver_time();
  switch (m.kind) {
    case ToDriver::kBack: {
      const bool known = driver_->expects(p.id);
      note(fmt::format("driver: worker {} back, generation {}, rank {}{}", p.id, m.back.generation,
                       m.back.rank, m.back.left ? ", left it" : ""));
      take(driver_->worker_back(p.id, m.back, t));
      p.forgotten = !driver_->expects(p.id) && p.where != Where::kDone;
      if (!known && driver_ && driver_->expects(p.id)) ++tally_.unheard_of;
      if (active() && !driver_->gathering() && driver_->generation() == before_) ++tally_.same_generation;
      break;
    }
    case ToDriver::kReady:
      note(fmt::format("driver: worker {} ready, left {}, revision {}", p.id, m.ready.left_generation,
                       m.ready.revision));
      take(driver_->worker_ready(p.id, m.ready, t));
      break;
    case ToDriver::kSynced: take(driver_->worker_synced(p.id, m.generation, m.revision, t)); break;
    case ToDriver::kFailedLink:
      note(fmt::format("driver: worker {} lost its link to rank {}", p.id, m.rank));
      take(driver_->worker_failed_link(p.id, m.generation, m.rank, "connection reset", t));
      break;
    case ToDriver::kDone:
      note(fmt::format("driver: worker {} done in {}", p.id, m.generation));
      take(driver_->worker_done(p.id, m.generation, t));
      break;
  }
  return true;
}

bool TakeoverSimulator::deliver_down(Process& p) {
  if (p.down.empty() || p.where == Where::kGone) return false;
  const ToWorker m = p.down.front();
  p.down.pop_front();
  const bool inside =
      p.where == Where::kConnecting || p.where == Where::kTraining || p.where == Where::kReducing;
  switch (m.kind) {
    case ToWorker::kEnd: die(p, true); break;
    case ToWorker::kNotify:
      if (m.epoch > p.epoch) {
        p.epoch = m.epoch;
        p.interrupt = m.interrupt;
      }
      break;
    case ToWorker::kAbort:
      if (p.instance.first != m.instance.first || p.left || p.lost) break;
      p.lost = true;
      if (inside) leave(p);
      break;
    case ToWorker::kAssign: {
      if (p.where == Where::kDone || m.instance.first <= p.instance.first) break;
      require(p.where == Where::kWaiting,
              "contract 1: a place in a new generation for a worker in the old one");
      Generation& g = generations_[m.instance];
      p.instance = m.instance;
      p.size = static_cast<int32_t>(g.members.size());
      p.rank = static_cast<int32_t>(std::find(g.members.begin(), g.members.end(), p.id) - g.members.begin());
      p.left = p.lost = p.synced = p.lost_peer = p.interrupt = false;
      p.failure.reset();
      p.assigned_epoch = m.epoch;
      p.epoch = std::max(p.epoch, m.epoch);
      p.where = Where::kConnecting;
      p.round = 0;
      ++g.entered;
      break;
    }
  }
  return true;
}

/// As the data plane shows: somebody of its generation has ended, or has left it for good.
bool TakeoverSimulator::peer_is_gone(const Process& p) {
  for (const uint64_t id : generations_[p.instance].members) {
    const Process& q = processes_.at(id);
    if (q.where == Where::kGone) return true;
    if (q.instance == p.instance && q.left && q.where != Where::kDone) return true;
  }
  return false;
}

bool TakeoverSimulator::to_be_left(const Generation& g, const Process& p) const {
  return std::any_of(g.members.begin(), g.members.end(), [&](uint64_t id) {
    const Process& q = processes_.at(id);
    return q.instance == p.instance && q.interrupt && q.epoch > q.assigned_epoch;
  });
}

bool TakeoverSimulator::step(Process& p) {
  Generation& g = generations_[p.instance];
  switch (p.where) {
    case Where::kStarting:
      if (!is_linked(p)) return false;  // its first hello
      say_ready(p);
      return true;
    case Where::kConnecting:
      if (g.entered < g.members.size()) break;
      require(!p.ever_synced || p.revision <= g.revision,
              "contract 5: a commit was lost while its holder lives");
      if (!g.trained) {
        g.trained = true;
        for (const auto& [instance, other] : generations_) {
          // Who knew of the other one may have been cut off, and the journal lost.
          const bool lives = std::any_of(other.members.begin(), other.members.end(), [&](uint64_t id) {
            const Process& q = processes_.at(id);
            return q.where != Where::kGone && !q.told_end && q.term == term_ && q.instance == instance;
          });
          const bool split =
              instance != p.instance && instance.first == p.instance.first && other.trained && lives;
          tally_.split += split;
          // Two drivers that know nothing of each other have each a part of the workers (docs/driver-loss.md).
          require(!split || lossy_ || !shared_, "contract 11: two generations of one number were at work");
        }
      }
      p.synced = p.ever_synced = true;
      p.revision = g.revision;
      p.where = Where::kTraining;
      if (is_linked(p)) p.up.push_back({ToDriver::kSynced, p.instance.first, {}, {}, p.revision});
      return true;
    case Where::kTraining:
      if (last_revision_ == UINT64_MAX && calm_ && p.round > 3 && p.round >= g.rounds.size() &&
          !to_be_left(g, p))
        return false;
      ++p.revision;
      if (g.rounds.size() <= p.round) g.rounds.resize(p.round + 1);
      ++g.rounds[p.round].contributions;
      g.rounds[p.round].interrupt |= p.interrupt && p.epoch > p.assigned_epoch;
      p.where = Where::kReducing;
      return true;
    case Where::kReducing:
      if (g.rounds[p.round].contributions < g.members.size()) break;
      if (g.rounds[p.round].interrupt) {
        leave(p);
      } else if (p.revision >= last_revision_) {
        p.where = Where::kDone;
        any_done_ = true;
        if (is_linked(p)) p.up.push_back({ToDriver::kDone, p.instance.first});
      } else {
        ++p.round;
        p.where = Where::kTraining;
      }
      return true;
    default: return false;
  }
  // It waits for others.
  if (!peer_is_gone(p) || !random_.chance(50)) return false;
  note(fmt::format("worker {} sees that a peer is gone", p.id));
  p.lost_peer = true;
  int32_t rank = -1;
  for (size_t i = 0; i < g.members.size(); ++i) {
    if (processes_.at(g.members[i]).where == Where::kGone) rank = static_cast<int32_t>(i);
  }
  p.failure = rank;
  if (is_linked(p)) p.up.push_back({ToDriver::kFailedLink, p.instance.first, {}, {}, 0, rank});
  leave(p);
  return true;
}

void TakeoverSimulator::say_ready(Process& p) {
  ReadyEvent ready{p.instance.first, p.ever_synced, p.revision, Digest{p.revision, 0}, p.host};
  ready.lost_peer = p.lost_peer;
  p.left = true;
  p.last_ready = ready;
  p.where = Where::kWaiting;
  if (is_linked(p)) p.up.push_back({ToDriver::kReady, 0, {}, ready});
}

void TakeoverSimulator::leave(Process& p) {
  note(fmt::format("worker {} leaves generation {}", p.id, p.instance.first));
  say_ready(p);
}

void TakeoverSimulator::die(Process& p, bool driver_sees) {
  note(fmt::format("worker {} ends", p.id));
  p.where = Where::kGone;
  p.up.clear();
  p.down.clear();
  if (driver_sees && driver_ && driver_->expects(p.id))
    take(driver_->worker_lost(p.id, LossKind::kConnectionClosed, "", driver_time()));
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
    for (const Member& m : a.members) line += fmt::format(" {}", m.worker);
    note(line);
  }
  ++tally_.generations;
  const Instance instance{a.generation, term_};
  require(!generations_.contains(instance), "contract 11: generations are numbered one after another");
  Generation& g = generations_[instance];
  const Member& root = a.members[static_cast<size_t>(a.root)];
  g.revision = root.revision;
  std::set<uint64_t> in;
  for (const Member& m : a.members) {
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
  require(in.size() == a.members.size(), "a worker has two ranks");
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

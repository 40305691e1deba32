// The simulated drivers: how one dies, what the next one knows, and an older one that lives on.
#include <fmt/format.h>

#include <algorithm>

#include "membership/takeover_simulator.h"

namespace hvd::membership::test {

void TakeoverSimulator::exchange_drivers() {
  std::swap(driver_, older_->driver);
  std::swap(term_, older_->term);
  std::swap(offset_, older_->offset);
  std::swap(journal_, older_->journal);
  std::swap(ends_, older_->ends);
  older_acts_ = !older_acts_;
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
  began_ = driver_time();
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
    // Messages that were under way may still arrive, or not.
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

}  // namespace hvd::membership::test

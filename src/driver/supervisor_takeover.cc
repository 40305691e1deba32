// Takes a job over from an earlier driver, and gives it up to a newer one (contract 14).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "driver/follower.h"
#include "driver/supervisor_impl.h"
#include "wire/messages.h"

namespace hvd::driver {
namespace {
constexpr Duration kFenceComes = std::chrono::seconds(10);
constexpr Duration kDialledInVain = std::chrono::seconds(5);
}  // namespace

/// Of a driver that stands still, or whose machine is gone, workers learn by its silence; then they dial in
/// vain before they dial here.
membership::Settle Supervisor::settle() const {
  const bool elsewhere = !config_.keeper || config_.keeper->drivers_before() == 0;
  const Duration timeout = config_.settings.heartbeat_timeout;
  return {timeout + (elsewhere ? kDialledInVain : Duration(0)), timeout / 5, timeout / 5 + kDialledInVain};
}

/// Whose processes run, whatever is left of the journal.
void Supervisor::know(const std::vector<launch::InheritedWorker>& kept) {
  membership::KnownJob& known = *config_.known;
  std::set<uint64_t> heard_of(known.done.begin(), known.done.end());
  for (const membership::KnownWorker& w : known.workers) heard_of.insert(w.worker);
  for (const launch::InheritedWorker& w : kept) {
    known.next_worker = std::max(known.next_worker, w.worker + 1);
    if (known.told || w.exit_status || heard_of.contains(w.worker)) continue;
    membership::KnownWorker& worker = known.workers.emplace_back();
    worker.worker = w.worker;
    worker.host = w.host;
    worker.slot = w.slot;
  }
}

/// Who was started by an earlier driver, as the keeper and the journal have it.
void Supervisor::inherit(const std::vector<launch::InheritedWorker>& kept) {
  if (config_.keeper) {
    for (const launch::InheritedWorker& w : kept) {
      if (!launcher_->inherit(w)) continue;
      if (!w.exit_status) membership_->worker_runs(w.worker);
      Worker& worker = workers_.try_emplace(w.worker, loop_).first->second;
      worker.host = w.host;
      worker.slot = w.slot;
      worker.rank = membership_->rank_of(w.worker);
      if (worker.rank >= 0) launcher_->set_rank(w.worker, worker.rank);
      if (!membership_->expects(w.worker)) {  // it is done, or it was stopped and has not gone yet
        worker.lost = true;
        worker.fate = Refusal{wire::Refusal::Stale, "its place is gone"};
      }
    }
  }
  for (const membership::KnownWorker& w : config_.known->workers) {
    const auto [found, is_new] = workers_.try_emplace(w.worker, loop_);
    if (!is_new) continue;
    Worker& worker = found->second;
    worker.host = w.host;
    worker.slot = w.slot;
    worker.rank = membership_->rank_of(w.worker);
    if (!w.own_place && launcher_->expect(w.worker, w.host, w.slot)) {
      if (worker.rank >= 0) launcher_->set_rank(w.worker, worker.rank);
      continue;
    }
    worker.foreign = true;
    worker.process = false;  // until it is back
  }
  std::unordered_map<uint64_t, int32_t> ranks;
  const std::vector<uint64_t>& members = config_.known->members;
  for (size_t rank = 0; rank < members.size(); ++rank) ranks[members[rank]] = static_cast<int32_t>(rank);
  for (const uint64_t id : config_.known->done) {
    const auto [found, is_new] = workers_.try_emplace(id, loop_);
    Worker& worker = found->second;
    worker.done = true;
    worker.lost = false;
    worker.fate.reset();
    if (const auto rank = ranks.find(id); rank != ranks.end())
      launcher_->set_rank(id, worker.rank = rank->second);
    if (is_new) worker.foreign = true, worker.process = false;
  }
  server_->run_on(membership_->generation(), static_cast<size_t>(membership_->size()));
  logger_->warning("this driver takes job {} over, term {}: generation {}, {} known", config_.settings.job,
                   config_.term, membership_->generation(), config_.known->workers.size());
  if (config_.known->finish) {
    lines_.clear();
    membership::Finish finish = *config_.known->finish;
    perform(finish);
    return publish();
  }
  // Whose process is neither kept nor somebody else's is gone: it can't come back.
  for (const membership::KnownWorker& w : config_.known->workers) {
    Worker& worker = workers_.at(w.worker);
    if (!worker.foreign || w.own_place || !launcher_->keeps_all(w.host)) continue;
    worker.lost = true;
    worker.fate = Refusal{wire::Refusal::Stale, "its process is gone"};
    apply(membership_->worker_lost(w.worker, membership::LossKind::kExited, "its process is gone",
                                   clock_.now()));
    if (finish_) return;
  }
}

void Supervisor::worker_back(uint64_t id, const membership::BackEvent& event) {
  const auto [found, is_new] = workers_.try_emplace(id, loop_);
  Worker& worker = found->second;
  if (is_new) {
    worker.host = event.slot_host;
    worker.slot = event.slot;
    worker.foreign = !launcher_->has(id);
    // Its slot is one of the job's before it counts as back: when the last one is, it is decided who stays.
    if (worker.foreign && launcher_->expect_host(worker.host, worker.slot + 1)) discover_now();
  }
  if (worker.foreign) worker.process = true;
  if (worker.done) return;
  apply(membership_->worker_back(id, event, clock_.now()));
  if (finish_) return;
  if (!membership_->expects(id)) {
    worker.lost = true;
    if (worker.foreign) worker.process = false;
    if (!worker.fate) worker.fate = Refusal{wire::Refusal::Removed, "this worker's place is gone"};
    server_->dismiss(id, worker.fate->code, worker.fate->reason);
    return publish();
  }
  worker.rank = membership_->rank_of(id);
  if (worker.rank >= 0) launcher_->set_rank(id, worker.rank);
  server_->run_on(membership_->generation(), static_cast<size_t>(membership_->size()));
}

/// An agent has brought it along.
void Supervisor::worker_found(uint64_t id, const std::string& host, int32_t slot) {
  if (closed_ || superseded_ || !membership_) return;
  const auto found = workers_.find(id);
  if (found == workers_.end()) {
    // It is somebody's that no journal tells of; what it is, it will say itself, or it is nobody's.
    if (membership_->may_come_back()) {
      unheard_of_.insert(id);
      doubt_timer_.start(config_.settings.heartbeat_timeout, [this] { end_unheard_of(); });
    } else {
      launcher_->stop(id, config_.settings.stop_grace);
    }
    return;
  }
  Worker& worker = found->second;
  if (worker.done && worker.host.empty()) {  // the journal names those that are done, no more
    worker.host = host;
    worker.slot = slot;
  }
  if (worker.host != host || worker.slot != slot) {
    logger_->warning("the agent of host {} says that it has {}: that is not so", host, name_of(id));
    return launcher_->forget(id);
  }
  worker.foreign = false;
  worker.process = true;
  membership_->worker_runs(id);
  // It may have connected before its agent did.
  if (const auto process = server_->process(id)) launcher_->set_process(id, *process);
  if (worker.rank >= 0) launcher_->set_rank(id, worker.rank);
  if (!worker.done && !membership_->expects(id)) {
    launcher_->stop(id, config_.settings.stop_grace);
  } else if (finish_ && !(finish_->success && worker.done)) {
    end_process(id, config_.settings.stop_grace);
  }
  publish();
}

void Supervisor::end_unheard_of() {
  for (const uint64_t id : std::exchange(unheard_of_, {})) {
    if (workers_.contains(id)) continue;
    logger_->warning("worker {}, which an agent has, is of no generation: it is ended", id);
    launcher_->stop(id, config_.settings.stop_grace);
  }
}

void Supervisor::agents_changed() {
  if (closed_) return;
  publish();
  discover_now();
}

bool Supervisor::fence(uint64_t term, const std::string& proof) {
  return server_ && server_->fence(term, proof);
}

uint64_t Supervisor::term() const { return server_ ? server_->term() : config_.term; }

void Supervisor::look_for_successor() {
  if (config_.journal && config_.journal->superseded()) superseded();
}

/// For who stands by; and to see for itself that another one has taken over, though nobody says so.
void Supervisor::beat() {
  if (!config_.journal || closed_ || finish_) return;
  look_for_successor();
  doubt_losses();
  config_.journal->beat();
  beat_timer_.start(config_.settings.heartbeat_interval, [this] { beat(); });
}

/// Whoever follows this driver may have taken over while its process stood still, and says so within moments
/// (class Fence). Until then nothing is concluded from workers that are gone.
void Supervisor::doubt_losses() {
  const bool stood_still = beat_at_ != Time() && now() - beat_at_ >= config_.settings.heartbeat_timeout / 2;
  beat_at_ = now();
  if (!followed_ || !stood_still || doubts_) return;
  doubts_ = true;
  logger_->warning("this driver stood still, and is followed: what it loses now may be another driver's");
  loss_timer_.start(kFenceComes, [this] {
    doubts_ = false;
    for (Loss& loss : std::exchange(doubtful_, {})) worker_lost(loss.worker, loss.kind, std::move(loss.why));
  });
}

bool Supervisor::is_doubtful(uint64_t worker, membership::LossKind kind, const std::string& why) {
  doubt_losses();
  if (!doubts_) return false;
  doubtful_.push_back({worker, kind, why});
  return true;
}

void Supervisor::gathered() {
  gathering_ = false;
  if (finish_) return;
  logger_->warning("taken over after {} s: {}", seconds_text(now() - took_over_),
                   membership_->phase() == membership::Phase::kRunning
                       ? fmt::format("generation {} goes on with {} workers", membership_->generation(),
                                     membership_->size())
                       : membership_->waiting_for());
}

/// A worker or an agent has heard of a driver of a newer term: it shows a proof of that driver's, or else the
/// journal's directory must say so as well. The word of a worker alone does not end a driver. One that has
/// only its workers to tell it takes a newer term yet.
uint64_t Supervisor::newer_term(uint64_t term, bool proved) {
  if (!proved && !(config_.journal && config_.journal->superseded())) return 0;
  if (gathering_ && !config_.journal && config_.known && !config_.known->told) return term + 1;
  loop_.post([this] { superseded(); });
  return 0;
}

/// contract 14: its workers are the new driver's; what runs here goes on to be watched until it ends.
void Supervisor::superseded() {
  if (std::exchange(superseded_, true) || finish_ || closed_) return;
  finish_ = membership::Finish{false,
                               fmt::format("another driver has taken job {} over: this one, of term {}, ends",
                                           config_.settings.job, server_->term())};
  logger_->warning("{}", finish_->sentence);
  tick_.cancel();
  discovery_timer_.cancel();
  for (auto& [id, worker] : workers_) {
    worker.timer.cancel();
    if (worker.foreign) worker.process = false;
  }
  server_->retire();
  launcher_->retire();
  publish();
}

/// False: there is nothing that it lacks.
bool Supervisor::tell_follower(const std::string& argument, const CommandReply& reply, bool even_nothing) {
  const JournalPart wanted = read_question(argument);
  std::string bytes;
  const JournalPart part = config_.journal->read(wanted, &bytes);
  if (bytes.empty() && !even_nothing) return false;
  reply(Status(), fmt::format("{} {} {} {}\n", part.term, part.file, part.offset, part.size) + bytes);
  return true;
}

/// Who asks for more than there is waits until there is more, or for a sign of life.
void Supervisor::command_journal(const std::string& argument, const CommandReply& reply) {
  if (!config_.journal) {
    return reply(Status(HVD_UNAVAILABLE, "this driver keeps no journal: nobody can follow it"), "");
  }
  if (superseded_) return reply(Status(HVD_UNAVAILABLE, "another driver has taken this job over"), "");
  followed_ = true;
  try {
    if (tell_follower(argument, reply, finish_.has_value())) return;
  } catch (const Error& error) { return reply(error.status(), ""); }
  followers_.emplace_back(argument, reply);
  if (followers_.size() == 1)
    follow_timer_.start(config_.settings.heartbeat_interval, [this] { tell_followers(true); });
}

void Supervisor::tell_followers(bool even_nothing) {
  for (auto& [argument, reply] : std::exchange(followers_, {})) {
    try {
      if (!tell_follower(argument, reply, even_nothing)) followers_.emplace_back(argument, reply);
    } catch (const Error& error) { reply(error.status(), ""); }
  }
  if (followers_.empty()) follow_timer_.cancel();
}

/// contract 14, from a driver without this one's directory: who can say so could also stop the job.
void Supervisor::command_yield(const std::string& argument, const CommandReply& reply) {
  uint64_t named = 0;
  const char* const end = argument.data() + argument.size();
  const auto [stop, bad] = std::from_chars(argument.data(), end, named);
  if (bad != std::errc() || stop != end)
    return reply(Status(HVD_INVALID, fmt::format("a term of '{}': expected a number", argument)), "");
  reply(Status(), std::to_string(term()));
  if (named > term()) loop_.post([this] { superseded(); });
}

/// False: another driver has taken over, and nobody is to be told what was decided here. It makes its own
/// file first and reads this one then, so of two at once either this one sees its file or it reads these
/// records.
bool Supervisor::write_journal() {
  std::vector<membership::Record> records;
  membership_->take_records(&records);
  if (!config_.journal || records.empty() || superseded_) return !superseded_;
  config_.journal->write(records);
  tell_followers(false);
  const bool formed = std::any_of(records.begin(), records.end(), [](const membership::Record& r) {
    return std::holds_alternative<membership::KnownJob>(r) ||
           std::holds_alternative<membership::JobFinished>(r);
  });
  if (!formed) return true;
  config_.journal->sync();
  return finish_ || !config_.journal->superseded();
}

}  // namespace hvd::driver

// Sums, histories and rates of what workers report.
#include "status/recorder.h"

#include <algorithm>

namespace hvd::status {
namespace {

constexpr Duration kWindow = std::chrono::seconds(10);  // of which rates are told
constexpr size_t kLeastSamples = 3;                     // kept, however old: heartbeats may be rare

/// The name between the first two quotes, or all of it: a report's text changes with time, the operation does
/// not.
std::string operation_of(const std::string& text) {
  const size_t begin = text.find('\'');
  const size_t end = begin == std::string::npos ? begin : text.find('\'', begin + 1);
  return end == std::string::npos ? text : text.substr(begin + 1, end - begin - 1);
}

}  // namespace

void Histogram::add(double seconds) {
  const auto bound = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  ++counts[static_cast<size_t>(bound - kBounds.begin())];
  sum += seconds;
}

double Snapshot::goodput() const {
  const double seconds = to_seconds(wall);
  if (useful < 0 || seconds <= 0) return -1;
  return std::min(useful / seconds, 1.0);
}

void Recorder::formed(uint64_t generation, const std::vector<uint64_t>& members, const std::string& reason,
                      Time now) {
  if (!generations_.empty() && !generations_.back().ended) generations_.back().ended = now;
  GenerationView& view = generations_.emplace_back();
  view.number = generation;
  view.cause = generation <= 1 ? Cause::kStart : reason.empty() ? Cause::kHostsUpdated : Cause::kPeerLost;
  view.reason = reason;
  view.size = static_cast<int32_t>(members.size());
  view.formed = now;
  if (view.cause != Cause::kStart) ++resets_[static_cast<size_t>(view.cause)];
  if (generations_.size() > kGenerations) generations_.pop_front();
  for (const uint64_t id : members) workers_[id].size = std::max(view.size, 1);
  stalls_.clear();
}

void Recorder::lost(uint64_t generation, Time now) {
  stalls_.clear();
  if (generations_.empty() || generations_.back().number != generation) return;
  if (!generations_.back().ended) generations_.back().ended = now;
}

void Recorder::progress(uint64_t id, const Progress& progress, Time now) {
  const auto found = workers_.find(id);
  if (found == workers_.end()) return;  // no member yet, or gone
  Worker& worker = found->second;
  Progress& last = worker.last;
  if (progress.commits < last.commits || progress.useful < last.useful || progress.commit < last.commit ||
      progress.sync_bytes < last.sync_bytes) {
    return;
  }
  // The mean over the members: a second in which all of them train is one second of the job.
  useful_ = std::max(useful_, 0.0) + to_seconds(progress.useful - last.useful) / worker.size;
  total_.commits += progress.commits - last.commits;
  total_.commit += progress.commit - last.commit;
  total_.sync_bytes += progress.sync_bytes - last.sync_bytes;
  last = progress;
  worker.told = true;
  worker.samples.push_back({now, progress.commits});
  while (worker.samples.size() > kLeastSamples && worker.samples[1].at < now - kWindow)
    worker.samples.pop_front();
}

void Recorder::recovered(uint64_t id, uint64_t generation, const Recovery& recovery) {
  const auto found = workers_.find(id);
  if (found != workers_.end()) found->second.recovery = recovery;
  for (size_t i = 0; i < kPhases; ++i) recoveries_[i].add(to_seconds(recovery.phases[i]));
  const auto view = std::find_if(generations_.rbegin(), generations_.rend(),
                                 [&](const GenerationView& g) { return g.number == generation; });
  if (view == generations_.rend()) return;
  ++view->reports;
  constexpr auto kLast = static_cast<size_t>(Phase::kTotal);
  if (!view->recovery || view->recovery->phases[kLast] < recovery.phases[kLast]) view->recovery = recovery;
}

void Recorder::stalled(const std::string& text, Duration waited, Time now) {
  std::string operation = operation_of(text);
  const Time until = now + waited + waited / 2 + seconds(1);
  const auto found = std::find_if(stalls_.begin(), stalls_.end(),
                                  [&](const Stall& stall) { return stall.operation == operation; });
  if (found != stalls_.end()) {
    found->until = until;
  } else if (stalls_.size() < 1000) {
    stalls_.push_back({std::move(operation), until});
  }
}

void Recorder::ended(Time now) {
  if (ended_) return;
  ended_ = now;
  if (!generations_.empty() && !generations_.back().ended) generations_.back().ended = now;
}

double Recorder::rate_of(const Worker& worker, Time now) {
  if (worker.samples.size() < 2) return 0;
  const Sample& first = worker.samples.front();
  // A worker that has told nothing for longer than between its reports has made none that we know of.
  const Time until = std::max(worker.samples.back().at, now - kWindow / 2);
  const double seconds = to_seconds(until - first.at);
  return seconds > 0 ? static_cast<double>(worker.samples.back().commits - first.commits) / seconds : 0;
}

void Recorder::fill(Snapshot* s, Time now) const {
  s->at = now;
  s->wall = std::max(ended_.value_or(now) - began_, Duration(0));
  s->useful = useful_;
  s->commits = total_.commits;
  s->commit_seconds = to_seconds(total_.commit);
  s->sync_bytes = total_.sync_bytes;
  s->resets_by_cause = resets_;
  s->recoveries = recoveries_;
  s->stalled = static_cast<int32_t>(
      std::count_if(stalls_.begin(), stalls_.end(), [&](const Stall& stall) { return now < stall.until; }));
  const auto recovered = std::find_if(generations_.rbegin(), generations_.rend(),
                                      [](const GenerationView& g) { return g.recovery.has_value(); });
  if (recovered != generations_.rend())
    s->last_recovery = recovered->recovery->phases[static_cast<size_t>(Phase::kTotal)];
  s->generations.assign(generations_.begin(), generations_.end());
  for (WorkerView& view : s->all) {
    const auto found = workers_.find(view.id);
    if (found == workers_.end()) continue;
    view.commits = found->second.last.commits;
    view.commits_per_second = ended_ ? 0 : rate_of(found->second, now);
    view.last = found->second.recovery;
    // All commit together: the fastest is the one that has told most recently.
    if (view.rank >= 0) s->commits_per_second = std::max(s->commits_per_second, view.commits_per_second);
  }
}

}  // namespace hvd::status

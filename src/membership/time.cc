// What time brings: late starters, late survivors, shortages, cooldowns.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "membership/impl.h"

namespace hvd::membership {
namespace {

constexpr Duration kLook = std::chrono::seconds(1);  // at processes that are slow

}  // namespace

void Membership::Impl::advance() {
  gather();
  if (gathering || phase == Phase::kEnded) return;
  end_cooldowns();
  end_late_starters();
  end_late_survivors();
  if (phase != Phase::kEnded) end_late_leavers();
  if (phase == Phase::kEnded) return;
  stop_misplaced();
  send_away_misfits();
  if (feed_newcomers()) stop_misplaced();  // others come first now
  try_form();
  if (phase != Phase::kEnded) check_shortage();
  if (phase == Phase::kEnded) return;
  start_workers();
  announce();
}

void Membership::Impl::end_cooldowns() {
  for (const std::string& host : hosts.end_cooldowns(now)) {
    ++epoch;
    unheard = true;
    added.add(host, workers.lives_on(host));
    log(HVD_LOG_INFO, fmt::format("host {} is off the blocklist", host));
  }
}

/// Slow is not dead (contract 19): a program that imports from a crowded disk runs, and is not ready.
void Membership::Impl::end_late_starters() {
  std::vector<std::pair<uint64_t, std::string>> late;
  for (Worker* w : newcomers()) {
    if (w->ready || now < w->started + config.start_timeout) continue;
    const bool runs = config.runs && config.runs(w->id);
    std::string why =
        fmt::format("not ready within {} s of its start (start_timeout)", seconds_text(config.start_timeout));
    if (runs && now >= w->started + config.start_timeout + config.slow_timeout) {
      why += fmt::format(", nor within {} s more, though its process runs (slow_timeout)",
                         seconds_text(config.slow_timeout));
    } else if (runs) {
      if (!std::exchange(w->slow, true)) {
        log(HVD_LOG_WARNING, fmt::format("{}: {}, but its process runs: it is given {} s more (slow_timeout)",
                                         describe(*w), why, seconds_text(config.slow_timeout)));
      }
      continue;
    }
    late.emplace_back(w->id, std::move(why));
  }
  for (const auto& [id, why] : late) {
    out.push_back(StopWorker{id, why});
    lose(*workers.find(id), why);
  }
}

/// When a worker that is not ready is looked at next.
Time Membership::Impl::start_judged_at(const Worker& worker) const {
  const Time late = worker.started + config.start_timeout;
  // Nobody tells that a process was stopped.
  return now < late ? late : std::min(now + kLook, late + config.slow_timeout);
}

void Membership::Impl::end_late_survivors() {
  if (phase != Phase::kForming || initial || now < waiting_since + config.elastic_timeout) return;
  const std::vector<uint64_t> late = inside();
  if (late.empty()) return;
  const std::string why =
      fmt::format("did not rejoin within {} s (elastic_timeout)", seconds_text(config.elastic_timeout));
  aborted = true;  // all that are still inside are ended here: nobody is left to be told
  for (uint64_t id : late) {
    Worker* worker = workers.find(id);
    if (worker == nullptr) continue;  // the job has ended with an earlier one
    out.push_back(StopWorker{id, why});
    lose(*worker, why);
    if (phase == Phase::kEnded) return;
  }
  if (initial) return;
  // The time is up for all: go on with those that came, or not at all.
  short_since = waiting_since;
}

// There is nothing to wait for: nobody can join, or too few slots are left and there will be no others.
bool Membership::Impl::short_for_good(const Plan& plan) {
  if (!closed.empty()) return phase == Phase::kForming && std::ssize(survivors()) < config.min_np;
  if (!config.hosts_fixed || !hosts_told) return false;
  const int64_t free =
      hosts.lasting_slots([this](const std::string& host) -> const auto& { return workers.places(host); });
  return std::ssize(plan.kept) + std::ssize(plan.newcomers) + free < config.min_np;
}

void Membership::Impl::check_shortage() {
  const Plan& plan = this->plan();
  if (initial) {
    ready_beginners =
        std::count_if(plan.newcomers.begin(), plan.newcomers.end(), [](Worker* w) { return w->ready; });
  }
  if (!short_of_workers(plan)) {
    short_since.reset();
    return;
  }
  if (!short_since) short_since = now;
  const bool for_good = short_for_good(plan);
  if (!for_good && now < *short_since + config.elastic_timeout) return;
  const auto ready =
      std::count_if(plan.newcomers.begin(), plan.newcomers.end(), [](Worker* w) { return w->ready; });
  std::string sentence =
      fmt::format("not enough slots: {} needed (--min-np), {} available after {} s", config.min_np,
                  std::ssize(plan.kept) + ready, seconds_text(now - *short_since));
  const int64_t usable = hosts.unblocked_slots(now);
  if (for_good && closed.empty()) {
    sentence += "; the hosts are fixed, and no other slot will get a worker";
  } else if (usable >= config.min_np) {
    sentence += fmt::format("; {} discovered", count(usable, "slot"));
  }
  if (const int32_t blocked = hosts.blocked_hosts(now); blocked > 0) {
    sentence += fmt::format("; {} on the blocklist", count(blocked, "host"));
  }
  if (!last_loss.empty()) sentence += "; last: " + last_loss;
  if (!closed.empty()) sentence += "; " + closed;
  finish(false, std::move(sentence), true);
}

std::optional<Time> Membership::Impl::wake() {
  if (phase == Phase::kEnded) return std::nullopt;
  if (gathering) {
    const bool sooner = !suspects.empty() && seen_by() > now;
    return std::max(sooner ? std::min(seen_by(), gather_until) : gather_until, now + milliseconds(1));
  }
  std::optional<Time> next = finishing() ? std::nullopt : hosts.next_change(now);
  const auto consider = [&](Time t) {
    if (t > now && (!next || t < *next)) next = t;
  };
  for (const Worker* w : leavers()) consider(*w->leaves_by);
  for (const Worker* w : newcomers()) {
    if (!w->ready) {
      consider(start_judged_at(*w));
    } else if (is_held(*w)) {
      consider(w->ready_since + config.feed_timeout);
    } else {
      consider(waits_for_others_until(*w));
    }
  }
  if (phase == Phase::kForming) {
    consider(waiting_since + (initial ? config.start_timeout : config.elastic_timeout));
  }
  if (may_come_back()) consider(gather_until);
  if (short_since) consider(*short_since + config.elastic_timeout);
  return next;
}

}  // namespace hvd::membership

// Newcomers and spares are fed with the last commit before they take a place, while the others train on.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "membership/impl.h"

namespace hvd::membership {

/// Of those that have it: one on the same host, where it is read in memory; newcomers are spread over the
/// rest.
Worker* Membership::Impl::source_for(const Worker& newcomer, const std::vector<Worker*>& sources) const {
  std::vector<Worker*> near;
  std::copy_if(sources.begin(), sources.end(), std::back_inserter(near),
               [&](const Worker* w) { return reported_host(*w) == reported_host(newcomer); });
  const std::vector<Worker*>& from = near.empty() ? sources : near;
  return from[newcomer.id % from.size()];
}

/// It gets the state first and its place then. Not for ever, and not while it is needed.
bool Membership::Impl::is_held(const Worker& w) const {
  if (!w.ready || w.member() || w.fed || !w.event.feeds || w.has_state) return false;
  if (initial || finishing() || now >= w.ready_since + config.feed_timeout) return false;
  return std::any_of(members.begin(), members.end(), [&](uint64_t id) {
    const Worker* member = workers.find(id);
    return member != nullptr && member->event.feeds;
  });
}

Time Membership::Impl::may_join_since(const Worker& w) const {
  return w.fed ? std::max(w.ready_since, w.fed_at) : w.ready_since;
}

/// Those that are fed at the same time join together, unless one takes more than twice as long as the other.
Time Membership::Impl::waits_for_others_until(const Worker& w) const {
  const Time since = may_join_since(w);
  return since + std::max(config.join_settle, since - w.ready_since);
}

/// Those that are ready and need not wait for anything; all that are ready if these would be too few.
void Membership::Impl::leave_out_held(Plan* plan) const {
  std::vector<Worker*> joining;
  std::copy_if(plan->newcomers.begin(), plan->newcomers.end(), std::back_inserter(joining),
               [&](const Worker* w) { return !is_held(*w); });
  if (std::ssize(plan->kept) + std::ssize(joining) >= config.min_np) plan->newcomers = std::move(joining);
}

/// Who waits is told whom to ask, in each generation anew. Members come to their commits undisturbed
/// meanwhile.
bool Membership::Impl::feed_newcomers() {
  if (!running() || finishing() || interrupted || !state_exists || config.feed_timeout <= Duration(0)) {
    return false;
  }
  std::vector<Worker*> hungry;
  const Plan& now_placed = plan();
  for (const auto* part : {&now_placed.newcomers, &now_placed.spares}) {
    std::copy_if(part->begin(), part->end(), std::back_inserter(hungry), [&](const Worker* w) {
      return w->ready && w->event.feeds && !w->has_state && w->fed_in != generation;
    });
  }
  if (hungry.empty()) return false;
  std::vector<Worker*> sources = survivors();
  if (!std::all_of(sources.begin(), sources.end(), [](const Worker* w) { return w->synced; })) return false;
  std::erase_if(sources, [](const Worker* w) { return !w->event.feeds; });
  if (sources.empty()) return false;
  bool any = false;
  for (Worker* w : hungry) {
    Worker* source = source_for(*w, sources);
    if (source->asked_in != generation) {
      source->asked_in = generation;
      source->offered = false;
      source->feed_endpoint.clear();
      out.push_back(WantFeed{source->id, generation, describe(*w)});
    }
    if (!source->offered) continue;
    w->fed_in = generation;
    w->fed_from = source->id;
    if (source->feed_endpoint.empty()) {
      now_fed(w);
      any = true;
      continue;
    }
    out.push_back(StartFeed{w->id, source->id, source->feed_endpoint, source->feed_key, config.join_pause});
  }
  return any;
}

void Membership::Impl::now_fed(Worker* w) {
  if (std::exchange(w->fed, true)) return;
  w->fed_at = now;
  forget_plan();
}

void Membership::Impl::feed_offered(uint64_t id, uint64_t in_generation, const FeedOffer& offer) {
  Worker* source = workers.find(id);
  quiet = true;
  if (source == nullptr || !source->member() || in_generation != generation ||
      source->asked_in != generation || source->offered) {
    return;
  }
  quiet = false;
  source->offered = true;
  source->feed_endpoint = offer.endpoint;
  source->feed_key = offer.key;
  if (offer.endpoint.empty()) {
    log(HVD_LOG_INFO, fmt::format("{} feeds nobody: {}", describe(*source), offer.reason));
  }
}

void Membership::Impl::worker_fed(uint64_t id, const FedEvent& event) {
  Worker* w = workers.find(id);
  quiet = true;
  if (w == nullptr || w->member() || w->fed || w->fed_from == 0 || w->fed_from != event.source) return;
  // Its source has left the generation, or will: the next one has another.
  if (!event.failure.empty() && (w->fed_in != generation || !running())) return;
  quiet = false;
  now_fed(w);
  constexpr double kMib = 1 << 20;
  if (!event.failure.empty()) {
    log(HVD_LOG_WARNING, fmt::format("{} joins without being fed: {}", describe(*w), event.failure));
  } else {
    log(HVD_LOG_INFO,
        fmt::format("{} was fed {:.1f} MiB within {} s and lacks {:.1f} MiB of revision {}", describe(*w),
                    static_cast<double>(event.bytes) / kMib, seconds_text(now - w->ready_since),
                    static_cast<double>(event.lacking) / kMib, event.revision));
  }
}

// ---- the public class ----

std::vector<Action> Membership::feed_offered(uint64_t worker, uint64_t generation, const FeedOffer& offer,
                                             Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) impl_->feed_offered(worker, generation, offer);
  return impl_->take(now);
}

std::vector<Action> Membership::worker_fed(uint64_t worker, const FedEvent& event, Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) impl_->worker_fed(worker, event);
  return impl_->take(now);
}

}  // namespace hvd::membership

// Decides whether a generation can form, and with whom.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "membership/fit.h"
#include "membership/impl.h"

namespace hvd::membership {
namespace {

/// The best of those that hold state: highest revision, lowest rank among equals. Null if nobody does.
Worker* best_holder(const std::vector<Worker*>& group) {
  Worker* best = nullptr;
  for (Worker* w : group) {
    if (w->has_state && (best == nullptr || w->revision > best->revision)) best = w;
  }
  return best;
}

}  // namespace

const Plan& Membership::Impl::plan() {
  if (!known_plan) known_plan = make_plan();
  return *known_plan;
}

Plan Membership::Impl::make_plan() {
  Plan plan;
  const int64_t cap = capacity();
  const std::vector<Worker*>& all = survivors();
  for (Worker* w : all) {
    // While the job is finishing, whoever is still in the work ends it.
    const bool stays = finishing() || (placed(*w) && std::ssize(plan.kept) < cap);
    (stays ? plan.kept : plan.leaving).push_back(w);
  }
  // Mostly there are none, among many that are members; and if there are they came last.
  size_t left = workers.living().size() - all.size();
  for (auto it = workers.living().rbegin(); left > 0 && it != workers.living().rend(); ++it) {
    Worker& w = it->second;
    if (w.member() && !initial) continue;
    --left;
    if (!w.member()) (placed(w) ? plan.newcomers : plan.homeless).push_back(&w);
  }
  std::reverse(plan.homeless.begin(), plan.homeless.end());
  const auto place = [&](const Worker* w) {
    return std::tuple(hosts.position(w->host), std::string_view(w->host.str()), w->slot);
  };
  if (std::ssize(plan.kept) + std::ssize(plan.newcomers) > cap) {
    std::sort(plan.newcomers.begin(), plan.newcomers.end(), [&](const Worker* a, const Worker* b) {
      return std::tuple(!a->ready, is_held(*a), place(a)) < std::tuple(!b->ready, is_held(*b), place(b));
    });
    const auto fit = plan.newcomers.begin() + std::max<int64_t>(0, cap - std::ssize(plan.kept));
    place_beyond(&plan, {fit, plan.newcomers.end()});
    plan.newcomers.erase(fit, plan.newcomers.end());
  }
  std::sort(plan.newcomers.begin(), plan.newcomers.end(),
            [&](const Worker* a, const Worker* b) { return place(a) < place(b); });
  keep_the_needed(&plan);
  return plan;
}

void Membership::Impl::stop_misplaced() {
  if (finishing()) return;  // they end with the job
  // Copies: the plan changes with each that is stopped.
  const std::vector<Worker*> homeless = plan().homeless, surplus = plan().surplus, spares = plan().spares;
  for (Worker* w : homeless) stop_worker(farewell(*w));
  for (Worker* w : surplus) {
    stop_worker(w->id, fmt::format("no place is left: {} are the maximum", count(capacity(), "worker")));
  }
  tell_waiting(spares);
}

void Membership::Impl::start_workers() {
  if (finishing() || !closed.empty() || gathering || may_come_back()) return;
  const Plan& now_placed = plan();
  int64_t room = capacity() + spares_wanted();
  // Whoever takes the place of one that goes is started while it is still there.
  for (const Worker* w : now_placed.kept) room -= w->leaves_by ? 0 : 1;
  room -= std::ssize(newcomers());
  if (room <= 0) return;
  const auto full = [&](const Name& host, int32_t slots) { return workers.full(host, slots); };
  hosts.for_each_usable(now, full, [&](const Name& host, int32_t slot) {
    if (workers.occupied(host, slot)) return true;
    const Worker& worker = workers.start(host, slot, now);
    forget_plan();
    out.push_back(StartWorker{worker.id, host, slot});
    KnownWorker known_worker;
    known_worker.worker = worker.id;
    known_worker.host = host;
    known_worker.slot = slot;
    remember(WorkerStarted{std::move(known_worker)});
    return --room > 0;
  });
}

bool Membership::Impl::short_of_workers(const Plan& plan) const {
  if (finishing()) return false;
  const auto ready =
      std::count_if(plan.newcomers.begin(), plan.newcomers.end(), [](Worker* w) { return w->ready; });
  return std::ssize(plan.kept) + ready < config.min_np;
}

void Membership::Impl::try_form() {
  if (phase != Phase::kForming) return;
  Plan plan = this->plan();
  const bool all_started_ready =
      std::all_of(plan.newcomers.begin(), plan.newcomers.end(), [](Worker* w) { return w->ready; });
  std::erase_if(plan.newcomers, [](Worker* w) { return !w->ready; });
  if (initial) {
    const bool complete = all_started_ready && std::ssize(plan.newcomers) >= first_size();
    const bool late = now >= waiting_since + config.start_timeout;
    if (short_of_workers(plan) || !(complete || late)) return;
    return send_away_minority(plan.newcomers) ? try_form() : form(plan.newcomers);
  }
  if (const std::vector<Worker*>& all = survivors();
      !std::all_of(all.begin(), all.end(), [](Worker* w) { return w->ready; }))
    return;
  leave_out_held(&plan);

  std::vector<Worker*> next = plan.kept;
  if (!finishing()) next.insert(next.end(), plan.newcomers.begin(), plan.newcomers.end());
  Worker* holder = best_holder(next);
  Worker* leaver = best_holder(plan.leaving);
  // Of a generation that began without state, a survivor that was never synced in it proves that no step of
  // the training was made: to begin again loses nothing, whoever had been synced before it was lost.
  if (state_exists && !fresh && holder == nullptr && leaver == nullptr) {
    std::string sentence = "no survivor holds state: ";
    for (const Worker* w : survivors())
      sentence += fmt::format("{}{}", w == survivors().front() ? "" : ", ", describe(*w));
    if (!last_loss.empty()) sentence += "; last: " + last_loss_with_cause();
    return finish(false, std::move(sentence));
  }
  if (short_of_workers(plan)) return;
  // contract 5: a commit that only a leaving worker holds is handed over before it goes.
  if (leaver != nullptr && (holder == nullptr || leaver->revision > holder->revision)) {
    auto after = std::find_if(next.begin(), next.end(),
                              [&](Worker* w) { return !w->member() || w->rank > leaver->rank; });
    next.insert(after, leaver);
  }
  if (send_away_too_long(next)) return try_form();
  if (!count_failed_connects()) return;
  if (restart_unconnected()) return try_form();
  if (config.reset_limit > 0 && resets - excused >= config.reset_limit + (found_unfit ? 1 : 0)) {
    const std::string& cause = !link_failure.empty() ? link_failure : lost_any ? last_loss : "hosts changed";
    return finish(false, fmt::format("reset limit {} exceeded: {}", config.reset_limit, cause));
  }
  form(next);
}

void Membership::Impl::send_away(Worker& worker, const std::string& reason, Fault fault) {
  const std::string why = "does not fit the other workers: " + reason;
  out.push_back(StopWorker{worker.id, why});
  lose(worker, why, fault);
}

/// Newcomers that don't fit the members never get as far as a generation: the members go on undisturbed
/// (contract 16).
void Membership::Impl::send_away_misfits() {
  if (finishing()) return;
  std::vector<Worker*> unjudged;
  for (Worker* w : newcomers()) {
    if (w->ready && w->judged_in != generation) unjudged.push_back(w);
  }
  if (unjudged.empty()) return;
  const std::vector<Worker*> members_now = survivors();
  if (members_now.empty()) return;
  std::vector<const std::vector<Offer>*> offers;
  for (const Worker* w : members_now) offers.push_back(&offers_of(*w));
  const Terms terms = terms_of(members_now.front()->event.settings, offers);
  for (Worker* w : unjudged) {
    w->judged_in = generation;
    std::string why = misfit(terms, w->event);
    if (why.empty()) why = too_long(w->address_bytes, members_now.size() + 1);
    if (!why.empty()) send_away(*w, why);
  }
}

const std::vector<Offer>& Membership::Impl::offers_of(const Worker& w) const {
  return w.in_roster ? roster->members[static_cast<size_t>(w.rank)].offers : w.event.offers;
}

const std::string& Membership::Impl::reported_host(const Worker& w) const {
  if (w.in_roster) return roster->members[static_cast<size_t>(w.rank)].host;
  return w.event.host.empty() ? w.host.str() : w.event.host;
}

/// Of those that would begin, those that don't fit most others; among as many, those that don't fit the
/// first.
bool Membership::Impl::send_away_minority(const std::vector<Worker*>& beginners) {
  if (send_away_too_long(beginners)) return true;
  std::unordered_map<std::string, std::vector<Worker*>> alike;
  std::vector<const std::vector<Worker*>*> each(beginners.size());  // with those like it
  for (size_t i = 0; i < beginners.size(); ++i) {
    auto& those = alike[beginning_terms(beginners[i]->event)];
    those.push_back(beginners[i]);
    each[i] = &those;
  }
  if (alike.size() <= 1) return false;
  const std::vector<Worker*>* most = *std::max_element(
      each.begin(), each.end(), [](const auto* a, const auto* b) { return a->size() < b->size(); });
  const ReadyEvent wanted = most->front()->event;
  Terms terms{wanted.settings, {}};
  if (!wanted.offers.empty()) terms.offers.push_back(wanted.offers.front());
  for (size_t i = 0; i < beginners.size() && phase != Phase::kEnded; ++i) {
    if (each[i] != most) send_away(*beginners[i], misfit(terms, beginners[i]->event));
  }
  return true;
}

/// Nobody may make an assignment too large for all of them.
bool Membership::Impl::send_away_too_long(const std::vector<Worker*>& next) {
  bool any = false;
  for (Worker* w : next) {
    const std::string why = too_long(w->address_bytes, next.size());
    if (why.empty()) continue;
    send_away(*w, why);
    any = true;
    if (phase == Phase::kEnded) break;
  }
  return any;
}

/// Counts generations that broke for no worker's fault; false: too many in a row, the job has ended.
bool Membership::Impl::count_failed_connects() {
  const std::vector<Worker*>& all = survivors();
  const bool connected = std::all_of(all.begin(), all.end(), [](Worker* w) { return w->synced; });
  if (link_failure.empty() || lost_any || connected) {
    failed_connects = 0;
    return true;
  }
  if (++failed_connects < kMaxFailedConnects) return true;
  finish(false,
         fmt::format("{} in a row could not be connected though every worker lives; last: {}{}{}",
                     count(failed_connects, "generation"), link_failure, closed.empty() ? "" : "; ", closed));
  return false;
}

/// A newcomer whose backend hangs would keep those that hold state from ever going on: when a second
/// generation in a row could not be connected, those that were in none before get fresh processes, and join
/// later.
bool Membership::Impl::restart_unconnected() {
  if (failed_connects < kPatientConnects || finishing()) return false;
  std::vector<uint64_t> fresh_ones;
  bool holder = false;
  for (const Worker* w : survivors()) {
    holder = holder || w->has_state;
    if (!w->ever_synced && !w->has_state) fresh_ones.push_back(w->id);
  }
  if (!holder || fresh_ones.empty()) return false;
  const std::string why = "the generation could not be connected with it: " + link_failure;
  for (const uint64_t id : fresh_ones) {
    out.push_back(StopWorker{id, why});
    lose(*workers.find(id), why);
  }
  return true;
}

void Membership::Impl::form(const std::vector<Worker*>& chosen) {
  std::vector<Worker*> next = chosen;
  // contract 7: survivors in their order, then newcomers; but rank 0 holds state if anybody does.
  if (!next.front()->has_state) {
    std::stable_partition(next.begin(), next.end(), [](Worker* w) { return w->has_state; });
  }
  for (Worker* w : next) w->chosen_for = generation + 1;
  std::vector<uint64_t> left_out;
  for (const Worker* w : survivors()) {
    if (w->chosen_for != generation + 1) left_out.push_back(w->id);
  }
  if (announced) ++epoch;  // an interrupt of the old generation must not reach into the new one
  if (generation++ > 0) ++resets;
  if (found_unfit) ++excused;
  if (initial) {
    unheard = false;
    added = removed = {};
  }

  const Worker* root = best_holder(next);  // contract 5
  fresh = root == nullptr;
  if (fresh) state_exists = false;
  // Callbacks may save before the sync, which believes as much (state/sync_plan.h); then members commit.
  newest = (fresh ? 0 : std::min(root->revision, ~uint64_t{0} >> 1)) + 2 * kMostCommits;
  Assign assign{generation, epoch, 0, nullptr, lost_any ? last_loss : link_failure};
  auto formed = std::make_shared<Roster>();
  formed->generation = generation;
  std::unordered_map<std::string_view, int32_t> on_host;
  on_host.reserve(hosts.count());
  const Worker* last = nullptr;    // mostly the next member is on the same host,
  int32_t* local_ranks = nullptr;  // which has had so many
  members.clear();
  seated_version = 0;
  formed->members.reserve(next.size());
  members.reserve(next.size());
  for (Worker* w : next) {
    const auto rank = static_cast<int32_t>(members.size());
    if (w == root) assign.root = rank;
    // Nobody asks its event for these again: the next generation is formed of what it says then.
    std::string host = std::move(w->event.host);
    if (host.empty()) host = w->host.str();
    formed->members.push_back(Member{w->id, std::move(host), std::move(w->event.offers), 0,
                                     w->event.has_state, w->event.revision, w->event.digest});
    Member& member = formed->members.back();
    w->in_roster = true;
    const bool same_host = last != nullptr && last->at_home && w->at_home && w->host.shares(last->host);
    if (!same_host) local_ranks = &on_host[member.host];
    last = w;
    member.local_rank = (*local_ranks)++;
    members.push_back(w->id);
    assign.spares += w->waits ? 1 : 0;
    w->waits = false;
    w->rank = rank;
    w->ready = w->synced = w->behind = false;
  }
  inherited = false;
  known_seated = std::move(next);
  seated_version = workers.version();
  assign.roster = roster = std::move(formed);
  out.push_back(std::move(assign));
  for (uint64_t id : left_out) {
    const Worker& w = *workers.find(id);
    stop_worker(farewell(w));
  }
  phase = Phase::kRunning;
  forget_plan();
  initial = aborted = interrupted = announced = settled = lost_any = found_unfit = false;
  link_failure.clear();
  unconfirmed.clear();
  stall.clear();
  short_since.reset();
  if (unheard) ++epoch;  // what was seen while forming is told to the new members as an epoch of its own
  remember(known());
}

bool Membership::Impl::newcomers_settled(const Plan& plan) {
  std::optional<Time> first;
  bool all = true;
  for (const Worker* w : plan.newcomers) {
    const bool joins = w->ready && !is_held(*w);
    if (joins) first = first ? std::min(*first, waits_for_others_until(*w)) : waits_for_others_until(*w);
    all = all && joins;
  }
  if (!first) return settled = false;
  return settled = settled || all || now >= *first;
}

/// Would the generation be another one if its members left it now?
bool Membership::Impl::interrupt_due() {
  if (finishing()) return false;  // who is done takes part in no agreement
  const Plan& plan = this->plan();
  anybody_leaves = !plan.leaving.empty();
  std::vector<Worker*> joining;
  if (newcomers_settled(plan)) {
    std::copy_if(plan.newcomers.begin(), plan.newcomers.end(), std::back_inserter(joining),
                 [&](Worker* w) { return w->ready && !is_held(*w); });
  }
  if (std::ssize(plan.kept) + std::ssize(joining) < config.min_np) return false;
  if (!joining.empty()) return true;
  const bool hand_over = best_holder(plan.kept) == nullptr && best_holder(plan.leaving) != nullptr;
  return plan.leaving.size() > (hand_over ? 1u : 0u);
}

// contract 2: the flag tells the truth about the newest epoch, and a new truth is a new epoch.
void Membership::Impl::announce() {
  if (!running()) return;
  const bool interrupt = interrupt_due();
  if (!unheard && interrupt == announced) return;
  if (!unheard) ++epoch;
  out.push_back(Notify{epoch, interrupt, added.take(), removed.take(), inside()});
  unheard = false;
  remember(Announced{epoch, interrupt, hosts.known(now)});
  announced = interrupt;
  interrupted = interrupted || interrupt;
}

}  // namespace hvd::membership

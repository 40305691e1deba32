// What others ask membership: phase, sizes, and what it waits for.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "membership/impl.h"

namespace hvd::membership {

int32_t Membership::Impl::first_size() const {
  const int32_t wanted = scaled ? *scaled : std::max(config.np, config.min_np);
  return config.max_np > 0 ? std::min(wanted, config.max_np) : wanted;
}

int64_t Membership::Impl::capacity() const { return initial ? first_size() : limit(); }

int64_t Membership::Impl::limit() const {
  if (scaled) return *scaled;
  return config.max_np > 0 ? config.max_np : std::numeric_limits<int32_t>::max();
}

const std::vector<Worker*>& Membership::Impl::seated() {
  if (seated_version == workers.version()) return known_seated;
  known_seated.clear();
  for (const uint64_t id : members) {
    if (Worker* w = workers.find(id)) known_seated.push_back(w);
  }
  seated_version = workers.version();
  return known_seated;
}

const std::vector<Worker*>& Membership::Impl::survivors() {
  static const std::vector<Worker*> none;
  return initial ? none : seated();
}

std::vector<Worker*> Membership::Impl::newcomers() {
  const Plan& p = plan();
  std::vector<Worker*> all;
  for (const auto* part : {&p.newcomers, &p.homeless, &p.spares, &p.surplus}) {
    all.insert(all.end(), part->begin(), part->end());
  }
  std::sort(all.begin(), all.end(), [](const Worker* a, const Worker* b) { return a->id < b->id; });
  return all;
}

std::vector<Worker*> Membership::Impl::leavers() {
  std::vector<Worker*> all;
  for (auto it = leaver_ids.begin(); it != leaver_ids.end();) {
    Worker* w = workers.find(*it);
    if (w == nullptr || !w->leaves_by) {
      it = leaver_ids.erase(it);
      continue;
    }
    all.push_back(w);
    ++it;
  }
  return all;
}

size_t Membership::Impl::survivor_count() { return initial ? 0 : seated().size(); }

std::vector<uint64_t> Membership::Impl::inside() {
  std::vector<uint64_t> ids;
  for (const Worker* w : survivors()) {
    if (!w->ready) ids.push_back(w->id);
  }
  return ids;
}

std::string Membership::Impl::describe(const Worker& worker) const {
  if (!worker.member()) return fmt::format("worker {} on {}", worker.id, worker.host.str());
  return fmt::format("rank {} (worker {} on {})", worker.rank, worker.id, worker.host.str());
}

void Membership::Deleter::operator()(Impl* impl) const { delete impl; }

Membership::Membership(MembershipConfig config, Time now) : impl_(new Impl(std::move(config), now)) {
  impl_->next = impl_->wake();
}

Membership::Membership(MembershipConfig config, const KnownJob& known, const Settle& settle, Time now)
    : impl_(new Impl(std::move(config), known, settle, now)) {
  impl_->next = impl_->wake();
}

std::vector<Action> Membership::hosts_changed(std::vector<HostSlots> hosts, Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) impl_->hosts_changed(hosts);
  return impl_->take(now);
}

std::vector<Action> Membership::worker_ready(uint64_t worker, ReadyEvent event, Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) {
    impl_->worker_ready(worker, std::move(event));
  } else {
    impl_->refuse(worker, "the job has ended");
  }
  return impl_->take(now);
}

std::vector<Action> Membership::worker_back(uint64_t worker, const BackEvent& event, Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) {
    impl_->worker_back(worker, event);
  } else {
    impl_->refuse(worker, "the job has ended");
  }
  return impl_->take(now);
}

void Membership::worker_runs(uint64_t worker) {
  if (Worker* w = impl_->workers.find(worker)) w->runs = true;
}

std::vector<Action> Membership::worker_synced(uint64_t worker, uint64_t generation, uint64_t revision,
                                              Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) impl_->worker_synced(worker, generation, revision);
  return impl_->take(now);
}

std::vector<Action> Membership::worker_failed_link(uint64_t worker, uint64_t generation, int32_t rank,
                                                   const std::string& message, Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) impl_->worker_failed_link(worker, generation, rank, message);
  return impl_->take(now);
}

std::vector<Action> Membership::worker_unfit(uint64_t worker, uint64_t generation, int32_t rank,
                                             const std::string& message, Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) impl_->worker_unfit(worker, generation, rank, message);
  return impl_->take(now);
}

std::vector<Action> Membership::worker_stalled(uint64_t worker, uint64_t generation, const StallEvent& event,
                                               Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) impl_->worker_stalled(worker, generation, event);
  return impl_->take(now);
}

std::vector<Action> Membership::worker_done(uint64_t worker, uint64_t generation, Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) impl_->worker_done(worker, generation);
  return impl_->take(now);
}

std::vector<Action> Membership::worker_lost(uint64_t worker, LossKind kind, const std::string& why,
                                            Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) {
    impl_->worker_lost(worker, kind, why);
  } else {
    impl_->workers.end(worker, Ending::kLost, why);
  }
  return impl_->take(now);
}

void Membership::driver_held_up(Duration held, Time now) {
  // Workers count from the last word of the driver, which came before it was held up.
  if (impl_->config.driver_timeout <= Duration(0) || 10 * held < 9 * impl_->config.driver_timeout) return;
  impl_->held_up =
      fmt::format("the driver did not run for {} s, and workers give one up after {} s (driver_timeout)",
                  seconds_text(held), seconds_text(impl_->config.driver_timeout));
  impl_->held_up_in = impl_->generation;
  impl_->held_up_until = now + impl_->config.driver_timeout;
}

std::vector<Action> Membership::close_joining(const std::string& reason, Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) impl_->close_joining(reason);
  return impl_->take(now);
}

std::vector<Action> Membership::stop(const std::string& reason, Time now) {
  impl_->now = std::max(impl_->now, now);
  if (!ended()) impl_->stop(reason);
  return impl_->take(now);
}

std::vector<Action> Membership::tick(Time now) {
  impl_->quiet = true;
  return impl_->take(now);
}

std::optional<Time> Membership::next_tick() const { return impl_->next_tick(); }

Phase Membership::phase() const { return impl_->phase; }
uint64_t Membership::generation() const { return impl_->generation; }
uint64_t Membership::epoch() const { return impl_->epoch; }
int32_t Membership::resets() const { return impl_->resets; }
int32_t Membership::size() const { return static_cast<int32_t>(impl_->survivor_count()); }

int32_t Membership::usable_slots(Time now) const {
  int64_t slots = impl_->hosts.unblocked_slots(now);
  slots = std::min(slots, impl_->limit());
  return static_cast<int32_t>(std::min<int64_t>(slots, std::numeric_limits<int32_t>::max()));
}

int32_t Membership::blocked_hosts(Time now) const { return impl_->hosts.blocked_hosts(now); }
bool Membership::expects(uint64_t worker) const { return impl_->workers.find(worker) != nullptr; }
bool Membership::is_member(uint64_t worker) const { return expects(worker) && rank_of(worker) >= 0; }

int32_t Membership::rank_of(uint64_t worker) const {
  if (const Worker* living = impl_->workers.find(worker)) return living->rank;
  // Those that have ended keep their seats.
  auto found = std::find(impl_->members.begin(), impl_->members.end(), worker);
  return found == impl_->members.end() ? -1 : static_cast<int32_t>(found - impl_->members.begin());
}

void Membership::take_records(std::vector<Record>* ret_records) {
  Impl& m = *impl_;
  if (std::exchange(m.records_lack_hosts, false)) {
    for (auto it = m.records.rbegin(); it != m.records.rend(); ++it) {
      auto* gone = std::get_if<WorkerGone>(&*it);
      if (gone == nullptr || gone->worker == 0) continue;
      gone->hosts = m.hosts.known(m.now);
      break;
    }
  }
  *ret_records = std::exchange(m.records, {});
}
bool Membership::gathering() const { return impl_->gathering; }
bool Membership::may_come_back() const { return impl_->may_come_back(); }
KnownJob Membership::known() const { return impl_->known(); }
bool Membership::ended() const { return impl_->phase == Phase::kEnded; }

std::string Membership::waiting_for() const {
  Impl& m = *impl_;
  if (m.gathering) {
    int64_t absent = std::count(m.members.begin(), m.members.end(), uint64_t{0});
    for (const Worker* w : m.survivors()) absent += w->absent ? 1 : 0;
    return fmt::format("generation {} waits for {} to come back to the new driver", m.generation,
                       count(absent, "member"));
  }
  if (m.phase != Phase::kForming) return "";
  const Plan plan = m.make_plan();
  std::vector<const Worker*> late;
  const std::vector<Worker*>& survivors = m.survivors();
  std::copy_if(survivors.begin(), survivors.end(), std::back_inserter(late),
               [](Worker* w) { return !w->ready; });
  const char* verb = "rejoin";
  if (late.empty() && (m.initial || m.short_of_workers(plan))) {
    std::copy_if(plan.newcomers.begin(), plan.newcomers.end(), std::back_inserter(late),
                 [](Worker* w) { return !w->ready; });
    verb = "become ready";
  }
  const std::string who = fmt::format("generation {} waits for ", m.generation + 1);
  if (!late.empty()) {
    const std::string others =
        late.size() > 1 ? fmt::format(" and {}", count(std::ssize(late) - 1, "other")) : "";
    return fmt::format("{}{}{} to {}", who, m.describe(*late.front()), others, verb);
  }
  const int64_t wanted = m.initial ? m.first_size() : m.config.min_np;
  const int64_t missing = std::max<int64_t>(1, wanted - std::ssize(plan.kept) - std::ssize(plan.newcomers));
  return fmt::format("{}{} ({} needed)", who, count(missing, "more slot"), wanted);
}

std::vector<KnownHost> Membership::hosts(Time now) const { return impl_->hosts.known(now); }
const Worker* Membership::worker(uint64_t worker) const { return impl_->workers.find(worker); }
const std::string& Membership::stall() const { return impl_->stall; }

}  // namespace hvd::membership

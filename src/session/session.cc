// The callers' side of a session: they hand events to its thread and wait for the outcome.
#include "session/session.h"

#include <fmt/format.h>

#include <utility>

#include "session/session_loop.h"
#include "wire/member.h"

namespace hvd::session {
namespace {

constexpr Duration kSlack = std::chrono::seconds(2);  // after the loop's own deadline, should it be held up
constexpr size_t kEnvelopeRoom = 4096;                // of a frame, for what goes around a value

}  // namespace

void Session::Impl::post(Event event) {
  loop.post([this, event = std::move(event)] { handle(event); });
}

std::optional<Status> Session::Impl::over() const {
  if (closed) return Status(HVD_CLOSED, "the session was closed");
  if (ended && ended->ok())
    return Status(HVD_REMOVED, fmt::format("the job has ended with success: {}", ended->message));
  if (ended) return ended;
  if (!started || !started->ok()) return Status(HVD_INVALID, "the session was not started");
  return std::nullopt;
}

Session::Session(SessionConfig config, SessionEvents events)
    : impl_(std::make_shared<Impl>(std::move(config), std::move(events))) {}

Session::~Session() { close(Duration(0)); }

Status Session::start() {
  Impl& s = *impl_;
  const Time deadline = now() + s.config.connect_timeout;
  {
    std::lock_guard lock(s.mutex);
    if (s.closed) return Status(HVD_CLOSED, "the session was closed");
    if (std::exchange(s.start_called, true)) return Status(HVD_INVALID, "start was called already");
  }
  s.loop.post([&s, deadline] { s.dial_first(deadline); });
  std::unique_lock lock(s.mutex);
  const bool told = s.changed.wait_until(lock, deadline + kLeastPatience + kSlack,
                                         [&s] { return s.started.has_value() || s.closed; });
  if (s.started) return *s.started;
  if (told) return Status(HVD_CLOSED, "the session was closed");
  return Status(HVD_TIMEOUT, fmt::format("the driver at {} has not answered within {:g} s", s.config.driver,
                                         to_seconds(s.config.connect_timeout)));
}

Status Session::join(const ReadyInfo& ready, Duration timeout, Assignment* ret_assignment) {
  Impl& s = *impl_;
  const Time deadline = now() + timeout;
  try {
    static_cast<void>(wire::write_offers(ready.offers));
  } catch (const Error& error) { return error.status(); }
  std::unique_lock lock(s.mutex);
  if (auto why = s.over()) return *why;
  if (std::exchange(s.joining, true)) return Status(HVD_INVALID, "join is called by another thread already");
  const struct Joining {  // with the lock held, at the latest when this goes: it comes after the lock
    bool& flag;
    ~Joining() { flag = false; }
  } joining{s.joining};
  if (!s.waiting) {
    s.post([ready, progress = s.progress_now()](SessionCore& c, Time t) {
      c.set_progress(progress);
      return c.ready(ready, t);
    });
  }
  const auto over = [&s] { return s.waiting || s.ended || s.closed; };
  s.changed.wait_until(lock, deadline, [&] { return s.spare || over(); });
  // The driver lives and has said that there is no place: what bounds this wait is its life (driver_timeout).
  if (s.spare) s.changed.wait(lock, over);
  if (auto why = s.over()) return *why;
  if (!s.waiting) {
    const std::string left = s.generation == 0 ? "the first one" : fmt::format("one after {}", s.generation);
    return Status(HVD_TIMEOUT,
                  fmt::format("no new generation within {:g} s: worker {} on host {} is ready and waits "
                              "for the driver at {} to form {} (newest membership epoch {})",
                              to_seconds(timeout), s.config.worker, s.config.host, s.config.driver, left,
                              s.word.load() / 2));
  }
  *ret_assignment = *std::exchange(s.waiting, std::nullopt);
  s.post(
      [generation = ret_assignment->generation](SessionCore& c, Time t) { return c.taken(generation, t); });
  return Status();
}

std::optional<AbortInfo> Session::abort_of(uint64_t generation) const {
  std::lock_guard lock(impl_->mutex);
  const auto& abort = impl_->last_abort;
  return abort && abort->generation == generation ? abort : std::nullopt;
}

void Session::report_synced(uint64_t generation, uint64_t revision) {
  set_revision(revision);
  impl_->post([=](SessionCore& c, Time t) { return c.synced(generation, revision, t); });
}

void Session::report_failure(uint64_t generation, int32_t rank, const std::string& message, bool unfit) {
  impl_->post([=](SessionCore& c, Time t) { return c.failure(generation, rank, message, unfit, t); });
}

void Session::report_feed_offer(uint64_t generation, const std::string& endpoint, const std::string& key,
                                const std::string& reason) {
  impl_->post([=](SessionCore& c, Time) { return c.feed_offer(generation, endpoint, key, reason); });
}

void Session::report_fed(uint64_t source, uint64_t revision, uint64_t bytes, uint64_t lacking,
                         const std::string& failure) {
  impl_->post([=](SessionCore& c, Time) { return c.fed(source, revision, bytes, lacking, failure); });
}

void Session::report_stall(uint64_t generation, const std::string& text, const std::vector<int32_t>& missing,
                           Duration waited) {
  impl_->post([=](SessionCore& c, Time t) { return c.stall(generation, text, missing, waited, t); });
}

uint64_t Session::epoch_word() const { return impl_->word.load(); }

uint64_t Session::term() const { return impl_->term.load(); }

void Session::set_revision(uint64_t revision) { impl_->revision.store(revision); }

void Session::set_progress(const Progress& progress) {
  std::lock_guard lock(impl_->progress_mutex);
  impl_->progress = progress;
}

void Session::report_recovered(uint64_t generation, const hvd_recovery_info& recovery) {
  impl_->post([=](SessionCore& c, Time t) { return c.recovered(generation, recovery, t); });
}

Status Session::finish(uint64_t revision, Duration timeout) {
  Impl& s = *impl_;
  const Time deadline = now() + timeout;
  std::unique_lock lock(s.mutex);
  if (s.ended && s.ended->ok() && !s.closed) return *s.ended;
  if (auto why = s.over()) return *why;
  s.post([revision, progress = s.progress_now()](SessionCore& c, Time t) {
    c.set_progress(progress);
    return c.done(revision, t);
  });
  s.changed.wait_until(lock, deadline, [&s] { return s.ended || s.closed; });
  if (s.ended && s.ended->ok() && !s.closed) return *s.ended;
  if (auto why = s.over()) return *why;
  return Status(HVD_TIMEOUT,
                fmt::format("worker {} is done, but the driver at {} has not ended the job within {:g} s: "
                            "other members of generation {} are not done",
                            s.config.worker, s.config.driver, to_seconds(timeout), s.generation));
}

void Session::leaving(Duration timeout, const std::string& message) {
  impl_->post([=](SessionCore& c, Time t) { return c.leaving(timeout, message, t); });
}

bool Session::left() const { return impl_->left; }

void Session::leave(const std::string& message) {
  impl_->post([message](SessionCore& c, Time t) { return c.leave(message, t); });
}

Status Session::kv_set(uint64_t generation, const std::string& key, std::span<const uint8_t> value) {
  Impl& s = *impl_;
  const size_t limit = wire::ChannelLimits{}.max_frame - kEnvelopeRoom - s.config.job.size();
  if (key.size() + value.size() > limit)
    return Status(HVD_INVALID,
                  fmt::format("value of {} bytes for key \"{}\", expected at most {}", value.size(),
                              key.substr(0, 100), limit - std::min(limit, key.size())));
  {
    std::lock_guard lock(s.mutex);
    if (auto why = s.over()) return *why;
    if (generation > s.generation || generation == 0)
      return Status(HVD_INVALID, fmt::format("key \"{}\" set in generation {}, the newest is {}", key,
                                             generation, s.generation));
    if (generation < s.generation || s.lost) {
      Status why(HVD_PEER_LOST, fmt::format("key \"{}\" not set: generation {} is lost", key, generation));
      return why.in_generation(generation);
    }
    const auto [it, is_new] = s.own_values.try_emplace(key, value.begin(), value.end());
    if (!is_new && !std::equal(value.begin(), value.end(), it->second.begin(), it->second.end()))
      return Status(HVD_INVALID,
                    fmt::format("key \"{}\" has another value in generation {} already", key, generation));
    if (!is_new) return Status();
  }
  s.post([generation, key, copy = std::vector<uint8_t>(value.begin(), value.end())](SessionCore& c, Time t) {
    return c.kv_set(generation, key, copy, t);
  });
  return Status();
}

Status Session::kv_get(uint64_t generation, const std::string& key, Duration timeout,
                       std::vector<uint8_t>* ret_value) {
  Impl& s = *impl_;
  const Time deadline = now() + timeout;
  std::unique_lock lock(s.mutex);
  if (auto why = s.over()) return *why;
  const uint64_t id = ++s.last_get;
  s.gets.emplace(id, std::nullopt);
  s.post([=](SessionCore& c, Time t) { return c.kv_get(id, generation, key, t); });
  s.changed.wait_until(lock, deadline, [&] { return s.gets[id] || s.ended || s.closed; });
  auto answer = std::move(s.gets[id]);
  s.gets.erase(id);
  if (answer) {
    if (answer->status.ok()) *ret_value = std::move(answer->value);
    return answer->status;
  }
  if (auto why = s.over()) return *why;
  s.post([id](SessionCore& c, Time) {
    c.kv_forget(id);
    return SessionCore::Actions{};
  });
  return Status(HVD_TIMEOUT, fmt::format("no worker of generation {} has set key \"{}\" within {:g} s",
                                         generation, key, to_seconds(timeout)));
}

std::string Session::local_address() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->address;
}

void Session::close(Duration linger) {
  Impl& s = *impl_;
  std::lock_guard one_at_a_time(s.closing);
  if (s.joined) return;
  s.change([&s] { s.closed = true; });
  s.post([linger](SessionCore& c, Time t) { return c.close(linger, t); });
  {
    std::unique_lock lock(s.mutex);
    s.changed.wait_for(lock, std::max(linger, Duration(0)) + kSlack, [&s] { return s.flushed; });
  }
  s.loop.stop();
  s.timer.reset();
  s.again.reset();
  s.channel.reset();
  s.candidate.reset();
  s.life.reset();
  s.joined = true;
}

}  // namespace hvd::session

// The session's thread: the channel, timers, and the core's actions.
#include "session/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/life.h"
#include "session/session_core.h"
#include "wire/member.h"
#include "wire/tls.h"

namespace hvd::session {
namespace {

constexpr int kFirstDials = 5;  // connections that broke before an answer to hello
constexpr Duration kFirstPause = std::chrono::milliseconds(20);
constexpr Duration kLeastPatience =
    std::chrono::seconds(1);                          // with a driver that let us in at the last moment
constexpr Duration kSlack = std::chrono::seconds(2);  // after the loop's own deadline, should it be held up
constexpr Duration kLastWord = std::chrono::seconds(1);  // to a driver that another one has replaced
constexpr size_t kEnvelopeRoom = 4096;                   // of a frame, for what goes around a value

CoreConfig to_core(const SessionConfig& c, const Life* life) {
  CoreConfig core{c.driver,        c.job, c.host, c.worker, c.slot, static_cast<int64_t>(::getpid()),
                  c.driver_timeout};
  if (life != nullptr) {
    core.life = life->descriptor();
    core.life_token = life->token();
  }
  return core;
}

std::unique_ptr<Life> hold_life(Logger& logger) {
  std::unique_ptr<Life> life;
  if (const Status status = Life::hold(&life); !status.ok())
    logger.debug("the driver learns of this process' end by its connection alone: {}", status.message);
  return life;
}

}  // namespace

// The loop's thread owns core, channel and timer. What the callers' threads wait for is guarded by the mutex.
struct Session::Impl {
  Impl(SessionConfig c, SessionEvents e)
      : config(std::move(c)),
        events(std::move(e)),
        logger(config.logger ? config.logger : std::make_shared<Logger>()),
        life(hold_life(*logger)),
        core(to_core(config, life.get())),
        loop("hvd-session") {}

  using Event = std::function<SessionCore::Actions(SessionCore&, Time)>;

  // ---- on the loop's thread ----

  void handle(const Event& event) {
    SessionCore::Actions actions = event(core, now());
    // Before any callback, so that whoever it wakes sees the newest epoch.
    word.store(core.epoch_word());
    for (Action& action : actions) std::visit([this](auto& a) { act(a); }, action);
    schedule();
  }

  Progress progress_now() {
    std::lock_guard lock(progress_mutex);
    return progress;
  }

  void schedule() {
    const auto at = core.next_tick();
    if (!at) return timer->cancel();
    timer->start(std::max(*at - now(), Duration(0)), [this] {
      handle([this](SessionCore& c, Time t) {
        c.set_revision(revision.load());
        c.set_progress(progress_now());
        return c.tick(t);
      });
    });
  }

  void act(Send& a) {
    if (const auto& to = a.candidate ? candidate : channel) to->send(wire::encode(a.envelope));
  }
  void act(Dial& a) {
    const uint64_t number = ++dials;
    wire::connect_channel(loop, config.driver, config.secret, wire::worker_identity(config.worker),
                          wire::ChannelLimits{}, a.timeout,
                          [this, number](std::shared_ptr<wire::Channel> c, const Status& why) {
                            dialled(number, std::move(c), why);
                          });
  }
  void act(StopDial&) { drop_candidate(); }
  void act(Adopt&) {
    if (channel) channel->close(kLastWord);
    channel = std::exchange(candidate, nullptr);
    channel->trust();
    listen_to(channel);
    change([this] { address = channel->local_address(); });
  }
  void act(NotifyDriver& a) {
    term.store(a.change.term);
    if (events.driver_changed) events.driver_changed(a.change);
  }
  void act(Welcomed&) {
    channel->trust();
    term.store(core.term());
    change([this] { started = Status(); });
  }
  void act(Deliver& a) {
    change([&] {
      generation = a.assignment.generation;
      lost = false;
      own_values.clear();
      spare = false;
      waiting = std::move(a.assignment);
    });
  }
  void act(NotifyAbort& a) {
    mark_lost(a.info.generation);
    change([&] { last_abort = a.info; });  // first: whoever misses the call can ask
    if (events.aborted) events.aborted(a.info);
  }
  void act(NotifyHosts& a) {
    if (events.hosts_updated) events.hosts_updated(a.update);
  }
  void act(AnswerKv& a) {
    if (a.status.code == HVD_PEER_LOST) mark_lost(a.status.generation);
    change([&] {
      if (const auto it = gets.find(a.id); it != gets.end())
        it->second = Answer{a.status, std::move(a.value)};
    });
  }
  void act(End& a) {
    bool was_started = false;
    change([&] {
      was_started = started.has_value() && started->ok();
      if (!started) started = a.why;
      ended = a.why;
      left = a.left;
    });
    logger->debug("session of worker {} ended: {} {}", config.worker, status_name(a.why.code), a.why.message);
    if (was_started && events.ended) events.ended(a.why);
  }
  void act(NotifyWaiting& a) {
    logger->info("worker {} waits for a place: {}", config.worker, a.reason);
    change([&] { spare = true; });
  }
  void act(NotifyFeedWanted& a) {
    if (events.feed_wanted) events.feed_wanted(a.generation);
  }
  void act(NotifyFeed& a) {
    if (events.feed) events.feed(a.info);
  }
  void act(Close& a) {
    drop_candidate();
    if (!channel) return channel_closed();
    channel->close_then(a.linger, [this] { channel_closed(); });
  }
  void act(LogLine& a) { logger->write(a.level, a.text); }

  void channel_closed() {
    change([this] { flushed = true; });
  }
  void mark_lost(uint64_t g) {
    change([&] { lost = lost || g == generation; });
  }

  void dial_first(Time deadline) {
    first_deadline = deadline;
    wire::connect_channel(loop, config.driver, config.secret, wire::worker_identity(config.worker),
                          wire::ChannelLimits{}, std::max<Duration>(deadline - now(), kLeastPatience),
                          [this, deadline](std::shared_ptr<wire::Channel> c, const Status& why) {
                            connected(std::move(c), why, deadline);
                          });
  }

  /// The driver died before it had answered: the next one will.
  bool dials_again() {
    if (now() >= first_deadline || ++first_dials > kFirstDials || !core.begin_anew()) return false;
    again->start(kFirstPause, [this] { dial_first(first_deadline); });
    return true;
  }

  void connected(std::shared_ptr<wire::Channel> c, const Status& why, Time deadline) {
    if (core.ended()) {  // closed meanwhile
      if (c) c->close(Duration(0));
      return;
    }
    if (!c) return change([&] { started = ended = why; });
    channel = std::move(c);
    change([this] { address = channel->local_address(); });
    listen_to(channel);
    const Duration patience = std::max<Duration>(deadline - now(), kLeastPatience);
    handle([patience](SessionCore& s, Time t) { return s.connected(patience, t); });
  }

  void listen_to(const std::shared_ptr<wire::Channel>& c) {
    c->set_handlers({[this](std::span<const uint8_t> frame) {
                       handle([frame](SessionCore& s, Time t) { return s.frame(frame, t); });
                     },
                     [this](const Status& closed) {
                       channel.reset();
                       if (dials_again()) return;
                       handle([&closed](SessionCore& s, Time t) { return s.channel_closed(closed, t); });
                     }});
  }

  void dialled(uint64_t number, std::shared_ptr<wire::Channel> c, const Status& why) {
    if (number != dials || core.ended()) {
      if (c) c->close(Duration(0));
      return;
    }
    if (!c) return handle([&why](SessionCore& s, Time t) { return s.dial_failed(why, t); });
    candidate = std::move(c);
    candidate->set_handlers(
        {[this](std::span<const uint8_t> frame) {
           handle([frame, this](SessionCore& s, Time t) {
             s.set_revision(revision.load());
             return s.candidate_frame(frame, t);
           });
         },
         [this](const Status& closed) {
           handle([&closed](SessionCore& s, Time t) { return s.candidate_closed(closed, t); });
         }});
    handle([](SessionCore& s, Time t) { return s.dialled(t); });
  }

  void drop_candidate() {
    ++dials;  // what is under way is not wanted any more
    if (const auto dropped = std::exchange(candidate, nullptr)) dropped->close(Duration(0));
  }

  // ---- on the callers' threads ----

  template <class F>
  void change(F f) {
    std::lock_guard lock(mutex);
    f();
    changed.notify_all();
  }

  void post(Event event) {
    loop.post([this, event = std::move(event)] { handle(event); });
  }

  // Why nothing more can be had, or nothing. With the mutex held.
  std::optional<Status> over() const {
    if (closed) return Status(HVD_CLOSED, "the session was closed");
    if (ended && ended->ok())
      return Status(HVD_REMOVED, fmt::format("the job has ended with success: {}", ended->message));
    if (ended) return ended;
    if (!started || !started->ok()) return Status(HVD_INVALID, "the session was not started");
    return std::nullopt;
  }

  const SessionConfig config;
  const SessionEvents events;
  const LoggerPtr logger;
  std::unique_ptr<Life> life;  // until the channel is closed
  SessionCore core;
  std::shared_ptr<wire::Channel> channel;    // none while the driver is gone
  std::shared_ptr<wire::Channel> candidate;  // to a driver that may become ours
  Time first_deadline{};                     // of start
  int first_dials = 0;
  uint64_t dials = 0;  // the newest attempt at one
  std::atomic<uint64_t> word{0}, revision{0}, term{0};
  std::mutex progress_mutex;
  Progress progress;

  std::mutex mutex;
  std::condition_variable changed;
  bool start_called = false, joining = false, closed = false;
  std::optional<Status> started;  // outcome of start
  std::optional<Status> ended;
  bool flushed = false;  // the channel is closed
  bool left = false;     // ended since this worker was to go
  bool spare = false;    // waits for a place, as the driver said
  std::string address;
  std::optional<Assignment> waiting;  // for join
  uint64_t generation = 0;            // newest assigned
  bool lost = false;                  // it is
  std::optional<AbortInfo> last_abort;
  std::unordered_map<std::string, std::vector<uint8_t>> own_values;  // set by this worker in that generation
  struct Answer {
    Status status;
    std::vector<uint8_t> value;
  };
  uint64_t last_get = 0;
  std::unordered_map<uint64_t, std::optional<Answer>> gets;

  std::mutex closing;   // one close at a time
  bool joined = false;  // the loop's thread is gone
  Loop loop;            // after all that its thread uses
  std::unique_ptr<Loop::Timer> timer = std::make_unique<Loop::Timer>(loop),
                               again = std::make_unique<Loop::Timer>(loop);
};

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
  s.joining = false;
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

bool Session::left() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->left;
}

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

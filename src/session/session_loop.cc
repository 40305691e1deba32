// The session's thread: the channel, timers, and the core's actions.
#include "session/session_loop.h"

#include <fmt/format.h>
#include <unistd.h>

#include <utility>

#include "wire/member.h"
#include "wire/tls.h"

namespace hvd::session {
namespace {

constexpr int kFirstDials = 5;  // connections that broke before an answer to hello
constexpr Duration kFirstPause = std::chrono::milliseconds(20);
constexpr Duration kLastWord = std::chrono::seconds(1);  // to a driver that another one has replaced

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

Session::Impl::Impl(SessionConfig c, SessionEvents e)
    : config(std::move(c)),
      events(std::move(e)),
      logger(config.logger ? config.logger : std::make_shared<Logger>()),
      life(hold_life(*logger)),
      core(to_core(config, life.get())),
      loop("hvd-session") {}

// The actions that follow are done and the next tick comes, whatever an event or an action throws: without it
// this worker would send no more heartbeats.
void Session::Impl::handle(const Event& event) {
  try {
    SessionCore::Actions actions = event(core, now());
    // Before any callback, so that whoever it wakes sees the newest epoch.
    word.store(core.epoch_word());
    for (Action& action : actions) perform(action);
  } catch (const std::exception& error) { complain(error); }
  schedule();
}

void Session::Impl::perform(Action& action) noexcept {
  try {
    std::visit([this](auto& a) { act(a); }, action);
  } catch (const std::exception& error) { complain(error); }
}

void Session::Impl::complain(const std::exception& error) noexcept {
  try {
    logger->error("session of worker {}: {}", config.worker, error.what());
  } catch (const std::exception&) {}  // no memory for the line
}

Progress Session::Impl::progress_now() {
  std::lock_guard lock(progress_mutex);
  return progress;
}

void Session::Impl::schedule() {
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

void Session::Impl::act(Send& a) {
  if (const auto& to = a.candidate ? candidate : channel) to->send(wire::encode(a.envelope));
}

void Session::Impl::act(Dial& a) {
  const uint64_t number = ++dials;
  wire::connect_channel(loop, config.driver, config.secret, wire::worker_identity(config.worker),
                        wire::ChannelLimits{}, a.timeout,
                        [this, number](std::shared_ptr<wire::Channel> c, const Status& why) {
                          dialled(number, std::move(c), why);
                        });
}

void Session::Impl::act(StopDial&) { drop_candidate(); }

void Session::Impl::act(Adopt&) {
  if (channel) channel->close(kLastWord);
  channel = std::exchange(candidate, nullptr);
  channel->trust();
  listen_to(channel);
  change([this] { address = channel->local_address(); });
}

void Session::Impl::act(NotifyDriver& a) {
  term.store(a.change.term);
  if (events.driver_changed) events.driver_changed(a.change);
}

void Session::Impl::act(Welcomed&) {
  channel->trust();
  term.store(core.term());
  change([this] { started = Status(); });
}

void Session::Impl::act(Deliver& a) {
  change([&] {
    generation = a.assignment.generation;
    lost = false;
    own_values.clear();
    spare = false;
    waiting = std::move(a.assignment);
  });
}

void Session::Impl::act(NotifyAbort& a) {
  mark_lost(a.info.generation);
  change([&] { last_abort = a.info; });  // first: whoever misses the call can ask
  if (events.aborted) events.aborted(a.info);
}

void Session::Impl::act(NotifyHosts& a) {
  if (events.hosts_updated) events.hosts_updated(a.update);
}

void Session::Impl::act(AnswerKv& a) {
  if (a.status.code == HVD_PEER_LOST) mark_lost(a.status.generation);
  change([&] {
    if (const auto it = gets.find(a.id); it != gets.end()) it->second = Answer{a.status, std::move(a.value)};
  });
}

void Session::Impl::act(End& a) {
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

void Session::Impl::act(NotifyWaiting& a) {
  logger->info("worker {} waits for a place: {}", config.worker, a.reason);
  change([&] { spare = true; });
}

void Session::Impl::act(NotifyFeedWanted& a) {
  if (events.feed_wanted) events.feed_wanted(a.generation);
}

void Session::Impl::act(NotifyFeed& a) {
  if (events.feed) events.feed(a.info);
}

void Session::Impl::act(Close& a) {
  drop_candidate();
  if (!channel) return channel_closed();
  channel->close_then(a.linger, [this] { channel_closed(); });
}

void Session::Impl::act(LogLine& a) { logger->write(a.level, a.text); }

void Session::Impl::channel_closed() {
  change([this] { flushed = true; });
}

void Session::Impl::mark_lost(uint64_t g) {
  change([&] { lost = lost || g == generation; });
}

void Session::Impl::dial_first(Time deadline) {
  first_deadline = deadline;
  wire::connect_channel(loop, config.driver, config.secret, wire::worker_identity(config.worker),
                        wire::ChannelLimits{}, std::max<Duration>(deadline - now(), kLeastPatience),
                        [this, deadline](std::shared_ptr<wire::Channel> c, const Status& why) {
                          connected(std::move(c), why, deadline);
                        });
}

bool Session::Impl::dials_again() {
  if (now() >= first_deadline || ++first_dials > kFirstDials || !core.begin_anew()) return false;
  again->start(kFirstPause, [this] { dial_first(first_deadline); });
  return true;
}

void Session::Impl::connected(std::shared_ptr<wire::Channel> c, const Status& why, Time deadline) {
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

void Session::Impl::listen_to(const std::shared_ptr<wire::Channel>& c) {
  c->set_handlers({[this](std::span<const uint8_t> frame) {
                     handle([frame](SessionCore& s, Time t) { return s.frame(frame, t); });
                   },
                   [this](const Status& closed) {
                     channel.reset();
                     if (dials_again()) return;
                     handle([&closed](SessionCore& s, Time t) { return s.channel_closed(closed, t); });
                   }});
}

void Session::Impl::dialled(uint64_t number, std::shared_ptr<wire::Channel> c, const Status& why) {
  if (number != dials || core.ended()) {
    if (c) c->close(Duration(0));
    return;
  }
  if (!c) return handle([&why](SessionCore& s, Time t) { return s.dial_failed(why, t); });
  candidate = std::move(c);
  candidate->set_handlers({[this](std::span<const uint8_t> frame) {
                             handle([frame, this](SessionCore& s, Time t) {
                               s.set_revision(revision.load());
                               return s.candidate_frame(frame, t);
                             });
                           },
                           [this](const Status& closed) {
                             handle(
                                 [&closed](SessionCore& s, Time t) { return s.candidate_closed(closed, t); });
                           }});
  handle([](SessionCore& s, Time t) { return s.dialled(t); });
}

void Session::Impl::drop_candidate() {
  ++dials;  // what is under way is not wanted any more
  if (const auto dropped = std::exchange(candidate, nullptr)) dropped->close(Duration(0));
}

}  // namespace hvd::session

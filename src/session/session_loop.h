// The part of a session that lives on its loop's thread, and the outcomes that callers wait for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/life.h"
#include "base/loop.h"
#include "session/session.h"
#include "session/session_core.h"
#include "wire/channel.h"

namespace hvd::session {

// With a driver that let us in at the last moment.
constexpr Duration kLeastPatience = std::chrono::seconds(1);

// The loop's thread owns core, channel and timer. What the callers' threads wait for is guarded by the mutex.
struct Session::Impl {
  Impl(SessionConfig c, SessionEvents e);

  using Event = std::function<SessionCore::Actions(SessionCore&, Time)>;

  // ---- on the loop's thread ----

  void handle(const Event& event);
  void perform(Action& action) noexcept;
  void complain(const std::exception& error) noexcept;
  Progress progress_now();
  void schedule();

  void act(Send& a);
  void act(Dial& a);
  void act(StopDial&);
  void act(Adopt&);
  void act(NotifyDriver& a);
  void act(Welcomed&);
  void act(Deliver& a);
  void act(NotifyAbort& a);
  void act(NotifyHosts& a);
  void act(AnswerKv& a);
  void act(End& a);
  void act(NotifyWaiting& a);
  void act(NotifyFeedWanted& a);
  void act(NotifyFeed& a);
  void act(Close& a);
  void act(LogLine& a);

  void channel_closed();
  void mark_lost(uint64_t g);

  void dial_first(Time deadline);
  /// The driver died before it had answered: the next one will.
  bool dials_again();
  void connected(std::shared_ptr<wire::Channel> c, const Status& why, Time deadline);
  void listen_to(const std::shared_ptr<wire::Channel>& c);
  void dialled(uint64_t number, std::shared_ptr<wire::Channel> c, const Status& why);
  void drop_candidate();

  // ---- on the callers' threads ----

  template <class F>
  void change(F f) {
    std::lock_guard lock(mutex);
    f();
    changed.notify_all();
  }

  void post(Event event);
  // Why nothing more can be had, or nothing. With the mutex held.
  std::optional<Status> over() const;

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
  std::atomic<bool> left{false};  // ended since this worker was to go: set after that, read at any time
  bool flushed = false;           // the channel is closed
  bool spare = false;             // waits for a place, as the driver said
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

}  // namespace hvd::session

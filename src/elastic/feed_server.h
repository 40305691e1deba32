// A member feeds those that wait for a place with its last commit, over connections of their own.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/rate_limit.h"
#include "state/feed.h"
#include "wire/channel.h"

namespace hvd::elastic {

struct FeedLimits {
  size_t channels = 64;  // beyond them the one that was silent for longest gives way
  size_t of_one = 2;     // of one worker, whose key is its own: one that comes again, and the one before
  Duration idle = seconds(60);  // that one may say nothing, unless it waits for another commit
};

/// A thread of low priority that does nothing unless it is asked.
class FeedServer {
 public:
  /// Where it can be reached and with which key; or, without an endpoint, why it can't. On its thread.
  using Offered =
      std::function<void(const std::string& endpoint, const std::string& key, const std::string& reason)>;

  /// Listens on one address, as the backends' links do: `address`, or that of the interface of this name.
  /// `offered` is called once, unless it ends before.
  FeedServer(std::shared_ptr<state::FeedSource> source, const std::string& address, LoggerPtr logger,
             Offered offered, const FeedLimits& limits = {});
  FeedServer(const FeedServer&) = delete;
  FeedServer& operator=(const FeedServer&) = delete;
  ~FeedServer();

 private:
  using ChannelPtr = std::shared_ptr<wire::Channel>;
  struct Fed {
    ChannelPtr channel;
    Time heard;                    // when it said something last
    std::optional<uint64_t> asks;  // for another commit than this, which it waits for
  };
  void listen(const std::string& address, const Offered& offered);
  void accepted(const ChannelPtr& channel);
  void received(const wire::Channel* channel, std::span<const uint8_t> frame);
  void dropped(const wire::Channel* channel);
  void make_room(const std::string& identity);
  void end_idle();
  bool answer(const Fed& fed);
  void answer_all();
  void answer_soon();
  void note(hvd_log_level level, const std::string& text);
  template <class Body>
  static void send(wire::Channel& channel, Body body);

  const std::shared_ptr<state::FeedSource> source_;
  const LoggerPtr logger_;
  const FeedLimits limits_;
  Loop loop_;  // stopped first, destroyed last: what follows belongs to it
  std::vector<Fed> fed_;
  std::atomic<bool> waited_for_{false};  // another commit is, by one of them
  Time answered_{};                      // when it looked last whether there is one
  RateLimit lines_{10, seconds(1)};      // of the log
  std::unique_ptr<Loop::Timer> answer_timer_, idle_timer_;
  std::unique_ptr<wire::Listener> listener_;
};

}  // namespace hvd::elastic

// What the tests of wire and session share: waiting for events with a deadline, a peer that records.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "patience.h"
#include "wire/channel.h"
#include "wire/tls.h"

namespace hvd::test {

inline const std::string kSecret(32, 's');
inline const auto kDeadline = patient(std::chrono::seconds(60));

/// State that one thread changes and another waits for.
class Events {
 public:
  template <class F>
  void change(F f) {
    std::lock_guard lock(mutex_);
    f();
    changed_.notify_all();
  }
  template <class Predicate>
  [[nodiscard]] bool wait(Predicate predicate) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kDeadline, predicate);
  }
  template <class F>
  auto read(F f) {
    std::lock_guard lock(mutex_);
    return f();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// Runs f on the loop and gives back what it returns.
template <class F>
auto run_on(Loop& loop, F f) {
  using Result = decltype(f());
  auto task = std::make_shared<std::packaged_task<Result()>>(std::move(f));
  auto result = task->get_future();
  loop.post([task] { (*task)(); });
  if (result.wait_for(kDeadline) != std::future_status::ready) throw std::runtime_error("the loop is stuck");
  return result.get();
}

/// Lines of a logger, to be waited for.
class LogLines {
 public:
  LoggerPtr logger =
      std::make_shared<Logger>(HVD_LOG_DEBUG, Callback<hvd_log_fn>(&LogLines::add, this, nullptr));

  int count(const std::string& part) {
    return events_.read([&] { return count_locked(part); });
  }
  [[nodiscard]] bool wait_for(const std::string& part) {
    return events_.wait([&] { return count_locked(part) > 0; });
  }

 private:
  static void add(void* self, hvd_log_level, const char* line) {
    auto* lines = static_cast<LogLines*>(self);
    lines->events_.change([&] { lines->lines_.emplace_back(line); });
  }
  int count_locked(const std::string& part) const {
    int n = 0;
    for (const auto& line : lines_) n += line.find(part) != std::string::npos ? 1 : 0;
    return n;
  }
  Events events_;
  std::vector<std::string> lines_;
};

/// One end of a connection: records frames and the end, or echoes.
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  explicit Peer(Loop& loop) : loop_(loop) {}

  void use(std::shared_ptr<wire::Channel> channel, bool echo = false) {  // on the loop
    channel_ = std::move(channel);
    // Not itself: it holds the channel, which holds the handlers.
    channel_->set_handlers({[weak = weak_from_this(), echo](std::span<const uint8_t> frame) {
                              if (const auto self = weak.lock()) self->got(frame, echo);
                            },
                            [weak = weak_from_this()](const Status& why) {
                              if (const auto self = weak.lock()) self->ended(why);
                            }});
    events.change([&] { connected = true; });
  }
  void failed(const Status& why) {
    events.change([&] { closed = why; });
  }
  void send(wire::Bytes frame) {
    loop_.post([self = shared_from_this(), frame = std::move(frame)]() mutable {
      self->channel_->send(std::move(frame));
    });
  }
  void with_channel(const std::function<void(wire::Channel&)>& function) {
    run_on(loop_, [&] {
      function(*channel_);
      return true;
    });
  }
  void close(Duration linger) {
    loop_.post([self = shared_from_this(), linger] { self->channel_->close(linger); });
  }
  [[nodiscard]] bool wait_frames(size_t n) {
    return events.wait([&] { return frames.size() >= n; });
  }
  [[nodiscard]] bool wait_closed() {
    return events.wait([&] { return closed.has_value(); });
  }

  Events events;  // guards what follows
  bool connected = false;
  std::vector<wire::Bytes> frames;
  std::optional<Status> closed;
  int closed_calls = 0;

 private:
  void got(std::span<const uint8_t> frame, bool echo) {
    if (echo) channel_->send(wire::Bytes(frame.begin(), frame.end()));
    events.change([&] { frames.emplace_back(frame.begin(), frame.end()); });
  }
  void ended(const Status& why) {
    events.change([&] {
      ++closed_calls;
      closed = why;
    });
  }
  Loop& loop_;
  std::shared_ptr<wire::Channel> channel_;
};

/// A listener whose connections become recording peers.
class Server {
 public:
  explicit Server(wire::ChannelLimits limits = {}, bool echo = false,
                  const std::string& endpoint = "127.0.0.1:0", bool trust = true,
                  const std::string& secret = kSecret) {
    listener = std::make_unique<wire::Listener>(loop, endpoint, secret, limits, log.logger,
                                                [this, echo, trust](std::shared_ptr<wire::Channel> channel) {
                                                  auto peer = std::make_shared<Peer>(loop);
                                                  if (trust) channel->trust();
                                                  peer->use(std::move(channel), echo);
                                                  events.change([&] { peers.push_back(peer); });
                                                });
  }
  ~Server() {
    loop.stop();
    peers.clear();
    listener.reset();
  }
  std::string endpoint() const { return "127.0.0.1:" + std::to_string(listener->port()); }
  wire::Listener::Counters counters() {
    return run_on(loop, [this] { return listener->counters(); });
  }
  std::shared_ptr<Peer> peer(size_t i) {
    if (!events.wait([&] { return peers.size() > i; })) throw std::runtime_error("nobody connected");
    return events.read([&] { return peers[i]; });
  }

  LogLines log;
  Loop loop{"server"};
  std::unique_ptr<wire::Listener> listener;
  Events events;
  std::vector<std::shared_ptr<Peer>> peers;
};

/// Connects; the result is connected, or closed says why not.
inline std::shared_ptr<Peer> connect(Loop& loop, const std::string& endpoint, wire::ChannelLimits limits = {},
                                     const std::string& secret = kSecret, Duration timeout = seconds(30),
                                     const std::string& identity = wire::kJobIdentity) {
  auto peer = std::make_shared<Peer>(loop);
  wire::connect_channel(loop, endpoint, secret, identity, limits, timeout,
                        [peer](std::shared_ptr<wire::Channel> channel, const Status& why) {
                          if (channel) {
                            channel->trust();
                            return peer->use(std::move(channel));
                          }
                          peer->failed(why);
                        });
  if (!peer->events.wait([&] { return peer->connected || peer->closed.has_value(); }))
    throw std::runtime_error("connect_channel never answered");
  return peer;
}

}  // namespace hvd::test

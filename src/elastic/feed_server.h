// A member feeds those that wait for a place with its last commit, over connections of their own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/loop.h"
#include "state/feed.h"
#include "wire/channel.h"

namespace hvd::elastic {

/// A thread of low priority that does nothing unless it is asked.
class FeedServer {
 public:
  /// Where it can be reached and with which key; or, without an endpoint, why it can't. On its thread.
  using Offered =
      std::function<void(const std::string& endpoint, const std::string& key, const std::string& reason)>;

  /// Listens on `local_address`, which is on the route to the driver; if that is the machine's own, on all of
  /// its addresses. `offered` is called once, unless it ends before.
  FeedServer(std::shared_ptr<state::FeedSource> source, const std::string& local_address, LoggerPtr logger,
             Offered offered);
  FeedServer(const FeedServer&) = delete;
  FeedServer& operator=(const FeedServer&) = delete;
  ~FeedServer();

 private:
  using ChannelPtr = std::shared_ptr<wire::Channel>;
  struct Asking {
    ChannelPtr channel;
    uint64_t known;
  };
  void listen(const std::string& local_address, const Offered& offered);
  void accepted(const ChannelPtr& channel);
  void received(const ChannelPtr& channel, std::span<const uint8_t> frame);
  void dropped(const wire::Channel* channel);
  bool answer(const Asking& asking);
  void look_again();
  template <class Body>
  static void send(wire::Channel& channel, Body body);

  const std::shared_ptr<state::FeedSource> source_;
  const LoggerPtr logger_;
  Loop loop_;  // stopped first, destroyed last: what follows belongs to it
  std::vector<ChannelPtr> channels_;
  std::vector<Asking> asking_;  // that wait for another commit
  std::unique_ptr<Loop::Timer> timer_;
  std::unique_ptr<wire::Listener> listener_;
};

}  // namespace hvd::elastic

// A worker's part in feeding: it feeds others while it is a member, and is fed while it waits for a place.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/log.h"
#include "base/options.h"
#include "elastic/feed_server.h"
#include "elastic/feeder.h"
#include "session/session.h"
#include "state/feed.h"

namespace hvd::elastic {

/// Thread-safe. The session that it answers to outlives it, or its end.
class Feeding {
 public:
  /// Options interface and local count.
  Feeding(const Options& options, LoggerPtr logger);

  /// Others are fed with this from now on; none: with nothing.
  void feed_from(std::shared_ptr<state::FeedSource> source);
  /// Gives out what this worker was fed before it had its place. Once.
  state::FeedCache take_fed();

  /// The driver wants others to be fed by a member of `generation`: answered with report_feed_offer.
  void serve(session::Session& session, uint64_t generation);
  /// The driver says who feeds `worker`, which is this one: answered with report_fed.
  void be_fed(session::Session& session, uint64_t worker, const session::FeedInfo& info);
  /// Feeds nobody and is fed no more, until the next one.
  void end();

 private:
  const std::string interface_;  // may be empty
  const bool reads_others_;
  const LoggerPtr logger_;
  std::mutex mutex_;
  std::shared_ptr<state::FeedSource> source_;
  state::FeedCache fed_;
  std::unique_ptr<FeedServer> server_;
  std::unique_ptr<Feeder> feeder_;
};

}  // namespace hvd::elastic

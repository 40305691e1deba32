// A worker's part in feeding: it feeds others while it is a member, and is fed while it waits for a place.
#include <utility>

#include "elastic/worker.h"

namespace hvd::elastic {

void Worker::feed_from(std::shared_ptr<state::FeedSource> source) {
  const std::lock_guard lock(feed_mutex_);
  feed_source_ = std::move(source);
}

state::FeedCache Worker::take_fed() {
  const std::lock_guard lock(feed_mutex_);
  return std::exchange(fed_, {});
}

void Worker::on_feed_wanted(uint64_t generation) {
  session::Session* const to = session();
  if (to == nullptr) return;
  const std::lock_guard lock(feed_mutex_);
  if (feed_source_ == nullptr) return to->report_feed_offer(generation, "", "", "it runs without a state");
  const auto offered = [to, generation](const std::string& endpoint, const std::string& key,
                                        const std::string& reason) {
    to->report_feed_offer(generation, endpoint, key, reason);
  };
  try {
    feed_server_.reset();
    feed_server_ = std::make_unique<FeedServer>(
        feed_source_, interface_.empty() ? to->local_address() : interface_, session_log_, offered);
  } catch (const std::exception& error) { to->report_feed_offer(generation, "", "", error.what()); }
}

void Worker::on_feed(const session::FeedInfo& info) {
  session::Session* const to = session();
  if (to == nullptr) return;
  const std::lock_guard lock(feed_mutex_);
  try {
    if (feeder_ == nullptr) {
      feeder_ = std::make_unique<Feeder>(worker_, reads_others_, session_log_, [to](const Feeder::Fed& fed) {
        to->report_fed(fed.source, fed.revision, fed.bytes, fed.lacking, fed.failure);
      });
    }
    feeder_->feed(info);
  } catch (const std::exception& error) { to->report_fed(info.source, 0, 0, 0, error.what()); }
}

void Worker::end_feeding() {
  std::unique_ptr<FeedServer> server;
  std::unique_ptr<Feeder> feeder;
  {
    const std::lock_guard lock(feed_mutex_);
    server = std::move(feed_server_);
    feeder = std::move(feeder_);
  }
  server.reset();
  if (feeder == nullptr) return;
  state::FeedCache fed = feeder->take();
  const std::lock_guard lock(feed_mutex_);
  fed_ = std::move(fed);
}

}  // namespace hvd::elastic

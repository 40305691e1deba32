// A worker's part in feeding: it feeds others while it is a member, and is fed while it waits for a place.
#include "elastic/feeding.h"

#include <utility>

namespace hvd::elastic {

Feeding::Feeding(const Options& options, LoggerPtr logger)
    : interface_(options.string("interface")),
      reads_others_(options.string("local") != "off"),
      logger_(std::move(logger)) {}

void Feeding::feed_from(std::shared_ptr<state::FeedSource> source) {
  const std::lock_guard lock(mutex_);
  source_ = std::move(source);
}

state::FeedCache Feeding::take_fed() {
  const std::lock_guard lock(mutex_);
  return std::exchange(fed_, {});
}

void Feeding::serve(session::Session& session, uint64_t generation) {
  const std::lock_guard lock(mutex_);
  if (source_ == nullptr) return session.report_feed_offer(generation, "", "", "it runs without a state");
  const auto offered = [&session, generation](const std::string& endpoint, const std::string& key,
                                              const std::string& reason) {
    session.report_feed_offer(generation, endpoint, key, reason);
  };
  try {
    server_.reset();
    server_ = std::make_unique<FeedServer>(source_, interface_.empty() ? session.local_address() : interface_,
                                           logger_, offered);
  } catch (const std::exception& error) { session.report_feed_offer(generation, "", "", error.what()); }
}

void Feeding::be_fed(session::Session& session, uint64_t worker, const session::FeedInfo& info) {
  const std::lock_guard lock(mutex_);
  try {
    if (feeder_ == nullptr) {
      feeder_ = std::make_unique<Feeder>(worker, reads_others_, logger_, [&session](const Feeder::Fed& fed) {
        session.report_fed(fed.source, fed.revision, fed.bytes, fed.lacking, fed.failure);
      });
    }
    feeder_->feed(info);
  } catch (const std::exception& error) { session.report_fed(info.source, 0, 0, 0, error.what()); }
}

void Feeding::end() {
  std::unique_ptr<FeedServer> server;
  std::unique_ptr<Feeder> feeder;
  {
    const std::lock_guard lock(mutex_);
    server = std::move(server_);
    feeder = std::move(feeder_);
  }
  server.reset();
  if (feeder == nullptr) return;
  state::FeedCache fed = feeder->take();
  const std::lock_guard lock(mutex_);
  fed_ = std::move(fed);
}

}  // namespace hvd::elastic

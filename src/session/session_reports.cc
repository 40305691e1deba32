// A worker's reports to its driver: ready, synced, recovered, a failure, a stall, feeding, leaving,
// done.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "session/session_core.h"
#include "wire/member.h"

namespace hvd::session {
namespace {

constexpr size_t kMaxStallText = 4096;
constexpr size_t kMaxBackendsText = 1024;

wire::Cause to_wire(Cause cause) {
  switch (cause) {
    case Cause::kStart: return wire::Cause::Start;
    case Cause::kPeerLost: return wire::Cause::PeerLost;
    case Cause::kHostsUpdated: break;
  }
  return wire::Cause::HostsUpdated;
}

}  // namespace

std::unique_ptr<wire::ProgressT> SessionCore::progress() const {
  auto result = std::make_unique<wire::ProgressT>();
  result->commits = progress_.commits;
  result->useful_ns = progress_.useful.count();
  result->commit_ns = progress_.commit.count();
  result->sync_bytes = progress_.sync_bytes;
  return result;
}

SessionCore::Actions SessionCore::ready(const ReadyInfo& info, Time) {
  // An assignment that waits to be taken is the answer to an earlier ready.
  if (phase_ != Phase::kWelcomed || !taken_) return take();
  left_ = true;
  last_ready_ = info;
  wire::ReadyT ready = to_wire(info);
  ready.progress = progress();
  send(generation_, std::move(ready));
  return take();
}

wire::ReadyT SessionCore::to_wire(const ReadyInfo& info) {
  wire::ReadyT ready;
  ready.cause = session::to_wire(info.cause);
  ready.has_state = info.has_state;
  ready.revision = info.revision;
  ready.digest = std::make_unique<wire::Digest>(info.digest.low, info.digest.high);
  ready.addresses = wire::write_offers(info.offers);
  ready.settings = wire::write_settings(info.settings);
  ready.backends = printable(info.backends, kMaxBackendsText);
  ready.feeds = info.feeds;
  return ready;
}

SessionCore::Actions SessionCore::taken(uint64_t generation, Time) {
  if (generation != generation_) return take();
  taken_ = true;
  if (held_) actions_.emplace_back(NotifyAbort{*std::exchange(held_, std::nullopt)});
  return take();
}

SessionCore::Actions SessionCore::synced(uint64_t generation, uint64_t revision, Time) {
  if (phase_ != Phase::kWelcomed || !is_live(generation)) return take();
  synced_ = ever_synced_ = true;
  wire::SyncedT synced;
  synced.revision = revision;
  send(generation, std::move(synced));
  return take();
}

SessionCore::Actions SessionCore::recovered(uint64_t generation, const hvd_recovery_info& r, Time) {
  if (phase_ != Phase::kWelcomed || !takes_recoveries_ || generation != generation_ || generation == 0)
    return take();
  wire::RecoveredT recovered;
  recovered.from_generation = r.from_generation;
  recovered.planned = r.cause == HVD_HOSTS_UPDATED;
  recovered.attempts = r.attempts;
  recovered.detection_ns = r.detection_ns;
  recovered.abort_ns = r.abort_ns;
  recovered.restore_ns = r.restore_ns;
  recovered.forming_ns = r.forming_ns;
  recovered.connecting_ns = r.connecting_ns;
  recovered.sync_ns = r.sync_ns;
  recovered.total_ns = r.total_ns;
  recovered.sync_bytes = r.sync_bytes;
  send(generation, std::move(recovered));
  return take();
}

SessionCore::Actions SessionCore::failure(uint64_t generation, int32_t rank, const std::string& message,
                                          bool unfit, Time) {
  // That somebody does not fit is as true when another loss was faster.
  const bool counts =
      is_live(generation) || (unfit && generation != 0 && generation == generation_ && !left_);
  if (phase_ != Phase::kWelcomed || !counts) return take();
  failure_ = Broken{generation, rank, message, unfit};
  wire::FailureT failure;
  failure.rank = rank;
  failure.unfit = unfit;
  failure.message = message;
  send(generation, std::move(failure));
  return take();
}

SessionCore::Actions SessionCore::stall(uint64_t generation, const std::string& text,
                                        const std::vector<int32_t>& missing, Duration waited, Time) {
  // A report of a generation that is over must not blame anybody in the next one.
  if (phase_ != Phase::kWelcomed || !takes_stalls_ || !is_live(generation)) return take();
  wire::StallT stall;
  stall.message = printable(text, kMaxStallText);
  stall.missing = missing;
  stall.waited_ms = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
  send(generation, std::move(stall));
  return take();
}

SessionCore::Actions SessionCore::feed_offer(uint64_t generation, const std::string& endpoint,
                                             const std::string& key, const std::string& reason) {
  if (phase_ != Phase::kWelcomed || !is_live(generation)) return take();
  wire::FeedOfferT offer;
  offer.endpoint = endpoint;
  offer.key = key;
  offer.reason = printable(reason, kMaxStallText);
  send(generation, std::move(offer));
  return take();
}

SessionCore::Actions SessionCore::fed(uint64_t source, uint64_t revision, uint64_t bytes, uint64_t lacking,
                                      const std::string& failure) {
  if (phase_ != Phase::kWelcomed) return take();
  wire::FedT fed;
  fed.source = source;
  fed.revision = revision;
  fed.bytes = bytes;
  fed.lacking = lacking;
  fed.failure = printable(failure, kMaxStallText);
  send(generation_, std::move(fed));
  return take();
}

SessionCore::Actions SessionCore::done(uint64_t revision, Time) {
  if (phase_ != Phase::kWelcomed) return take();
  done_ = revision;
  wire::DoneT done;
  done.revision = revision;
  done.progress = progress();
  send(generation_, std::move(done));
  return take();
}

SessionCore::Actions SessionCore::leave(const std::string& message, Time) {
  if (phase_ != Phase::kWelcomed) return take();
  wire::LeaveT leave;
  leave.message = message;
  send(generation_, std::move(leave));
  return take();
}

SessionCore::Actions SessionCore::leaving(Duration timeout, const std::string& message, Time now) {
  const Time by = now + std::max(timeout, Duration(0));
  if (leaves_by_ && *leaves_by_ <= by) return take();
  leaves_by_ = by;
  leaves_why_ = printable(message, kMaxStallText);
  say_leaving(now);
  return take();
}

// The driver holds every worker to the earliest deadline, so that this may be said again.
void SessionCore::say_leaving(Time now) {
  if (phase_ != Phase::kWelcomed || !linked_ || !leaves_by_) return;
  if (!takes_leaving_) {
    return log(
        HVD_LOG_WARNING,
        fmt::format("the driver at {} knows nothing of workers that leave: this one stays", config_.driver));
  }
  wire::LeavingT leaving;
  leaving.timeout_ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(std::max(*leaves_by_ - now, Duration(0))).count();
  leaving.message = leaves_why_;
  send(generation_, std::move(leaving));
}

SessionCore::Actions SessionCore::close(Duration linger, Time) {
  end(Status(HVD_CLOSED, "the session was closed"), linger);
  return take();
}

}  // namespace hvd::session

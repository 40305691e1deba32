// Bounds of what each rank may have waiting at rank 0: a rank that lies must not fill its memory.
#include <fmt/format.h>

#include "collective/matcher.h"

namespace hvd::collective {

namespace {
// A rank keeps to the bounds itself. Calls that it has given up are here until their deadline.
constexpr size_t kFactor = 2;
constexpr size_t kMostBytes = kFactor * kMostBytesUnderWay;
}  // namespace

/// Bytes that a call takes here, about.
size_t Matcher::weight(const Request& request) {
  return request.call->weight + request.payload.size() + sizeof(Request);
}

/// Whether the rank has more under way than any that keeps to its bounds: it fills this one's memory.
bool Matcher::exceeds(int32_t rank) {
  const Share& share = shares_[static_cast<size_t>(rank)];
  const size_t most = kFactor * config_.most_under_way;
  const bool many = share.calls >= most;
  if (!many && share.bytes < kMostBytes) return false;
  Action& action = actions_.emplace_back();
  action.type = Action::Type::kBreak;
  action.rank = rank;
  action.line =
      many ? fmt::format("{} has {} operations under way and begins another: expected at most {}",
                         describe_ranks({rank}, hosts_), share.calls, most)
           : fmt::format("{} has operations of {} bytes under way and begins another: expected at most {}",
                         describe_ranks({rank}, hosts_), share.bytes, kMostBytes);
  return true;
}

/// Takes out of the table what waits for no more calls.
Matcher::PendingPtr Matcher::taken(Table::iterator it) {
  PendingPtr pending = std::move(it->second);
  pending_.erase(it);
  for (size_t r = 0; r < pending->calls.size(); ++r) {
    if (pending->calls[r].here == 0) continue;
    --shares_[r].calls;
    shares_[r].bytes -= weight(pending->at(static_cast<int32_t>(r)));
  }
  return pending;
}

}  // namespace hvd::collective

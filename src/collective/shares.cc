// Bounds of what each rank may have waiting at rank 0: a rank that lies must not fill its memory.
#include <fmt/format.h>

#include "collective/matcher.h"

namespace hvd::collective {

namespace {
// A rank keeps to the bounds itself. Calls that it has given up are here until their deadline.
constexpr size_t kFactor = 2;
constexpr size_t kMostBytes = kFactor * kMostBytesUnderWay;
// Of answers that came too late for one rank. Those for many ranks may come from the calls of a single one.
constexpr size_t kMostLate = 1024;
constexpr size_t kMostLateBytes = size_t{256} << 10;
}  // namespace

size_t entry_weight(const std::string& key, size_t ranks) {
  return sizeof(Pending) + ranks * sizeof(Pending::Call) + 2 * key.size();
}

/// Bytes that a call takes here, about.
size_t Matcher::weight(const Request& request) {
  return request.call->weight + request.payload.size() + sizeof(Request);
}

size_t Matcher::weight(const Tombstone& answer) {
  return sizeof(Tombstone) + answer.key.size() + answer.outcome->status.message.size();
}

void Matcher::remember(Late& late, Tombstone answer) {
  late.bytes += weight(answer);
  late.answers.push_back(std::move(answer));
  while (late.answers.size() > kMostLate || (late.bytes > kMostLateBytes && late.answers.size() > 1)) {
    late.bytes -= weight(late.answers.front());
    late.answers.pop_front();
  }
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
  shares_[static_cast<size_t>(pending->opened_by)].bytes -= entry_weight(pending->key, hosts_.size());
  for (size_t r = 0; r < pending->calls.size(); ++r) {
    if (pending->calls[r].here == 0) continue;
    --shares_[r].calls;
    shares_[r].bytes -= weight(pending->at(static_cast<int32_t>(r)));
  }
  return pending;
}

}  // namespace hvd::collective

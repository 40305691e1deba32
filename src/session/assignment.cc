// Checks an Assignment and makes it plain.
#include "session/assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "wire/member.h"

namespace hvd::session {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(HVD_INVALID, "assignment with " + what);
}

// On each host the local ranks are 0, 1, 2 ... in some order.
void check_local_ranks(const std::vector<Member>& members) {
  std::unordered_map<std::string_view, std::vector<int32_t>> hosts;
  for (const Member& m : members) hosts[m.host].push_back(m.local_rank);
  for (auto& [host, ranks] : hosts) {
    std::sort(ranks.begin(), ranks.end());
    const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
    require(twice == ranks.end(),
            fmt::format("local rank {} twice on host {}", twice == ranks.end() ? 0 : *twice, host));
    require(ranks.front() == 0 && ranks.back() == static_cast<int32_t>(ranks.size()) - 1,
            fmt::format("local ranks {} to {} of {} workers on host {}", ranks.front(), ranks.back(),
                        ranks.size(), host));
  }
}

}  // namespace

Assignment to_assignment(uint64_t generation, const wire::AssignmentT& received, uint64_t worker,
                         const wire::Known* known) {
  Assignment result;
  result.generation = generation;
  result.epoch = received.epoch;
  result.root = received.root;
  result.rank = -1;
  result.reason = received.reason;
  result.spares = std::max(received.spares, 0);
  if (received.roster != nullptr) {
    require(received.members.empty(), "members and a roster of them");
    result.members = wire::read_roster(*received.roster, known);
  }
  for (const auto& m : received.members) result.members.push_back(wire::read_member(*m));
  const size_t size = result.members.size();
  require(size > 0 && size <= std::numeric_limits<int32_t>::max(), fmt::format("{} members", size));
  std::unordered_set<uint64_t> workers;
  workers.reserve(size);
  for (size_t rank = 0; rank < size; ++rank) {
    const uint64_t id = result.members[rank].worker;
    if (!workers.insert(id).second) require(false, fmt::format("worker {} twice", id));
    if (id == worker) result.rank = static_cast<int32_t>(rank);
  }
  require(result.rank >= 0, fmt::format("no place for worker {}, to whom it was sent", worker));
  require(result.root >= 0 && static_cast<size_t>(result.root) < size,
          fmt::format("root {} of {} members", result.root, size));
  check_local_ranks(result.members);
  return result;
}

}  // namespace hvd::session

// Checks an Assignment and makes it plain.
#include "session/assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "wire/member.h"

namespace hvd::session {
namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw Error(HVD_INVALID, "assignment with " + what);
}

// On each host the local ranks are 0, 1, 2 ... in some order.
void check_local_ranks(const std::vector<Member>& members) {
  std::map<std::string, std::set<int32_t>> hosts;
  for (const Member& m : members)
    require(hosts[m.host].insert(m.local_rank).second,
            fmt::format("local rank {} twice on host {}", m.local_rank, m.host));
  for (const auto& [host, ranks] : hosts)
    require(*ranks.begin() == 0 && *ranks.rbegin() == static_cast<int32_t>(ranks.size()) - 1,
            fmt::format("local ranks {} to {} of {} workers on host {}", *ranks.begin(), *ranks.rbegin(),
                        ranks.size(), host));
}

}  // namespace

Assignment to_assignment(uint64_t generation, const wire::AssignmentT& received, uint64_t worker) {
  Assignment result;
  result.generation = generation;
  result.epoch = received.epoch;
  result.root = received.root;
  result.rank = -1;
  result.reason = received.reason;
  result.spares = std::max(received.spares, 0);
  const size_t size = received.members.size();
  require(size > 0 && size <= std::numeric_limits<int32_t>::max(), fmt::format("{} members", size));
  std::set<uint64_t> workers;
  for (const auto& m : received.members) {
    require(workers.insert(m->worker).second, fmt::format("worker {} twice", m->worker));
    if (m->worker == worker) result.rank = static_cast<int32_t>(result.members.size());
    result.members.push_back(wire::read_member(*m));
  }
  require(result.rank >= 0, fmt::format("no place for worker {}, to whom it was sent", worker));
  require(result.root >= 0 && static_cast<size_t>(result.root) < size,
          fmt::format("root {} of {} members", result.root, size));
  check_local_ranks(result.members);
  return result;
}

}  // namespace hvd::session

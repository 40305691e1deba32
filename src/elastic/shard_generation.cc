// The generation of a worker as a state's shards see it.
#include <utility>

#include "elastic/worker.h"

namespace hvd::elastic {

Status Worker::generation(state::Generation* ret_generation) {
  const session::Assignment assigned = assignment();
  const auto use = std::shared_ptr<EngineUse>(new EngineUse(engine(assigned.generation)));
  if (!*use) return current_.why_no_engine();
  state::Generation result;
  result.use = use;
  result.engine = &**use;
  result.timeout = operations().operation_timeout();
  const hvd_membership_info place = membership();
  result.rank = place.rank;
  for (const Member& member : assigned.members) result.hosts.push_back(member.host);
  result.hosts.resize(static_cast<size_t>(place.size));
  const bool wants_to_go = !leaving_.wish().empty();
  std::lock_guard lock(mutex_);
  for (int32_t rank = 0; rank < place.size; ++rank) {
    const bool leaves = rank == place.rank && wants_to_go;
    if (leaves || shrinking_.contains(result.hosts[static_cast<size_t>(rank)]))
      result.leaving.push_back(rank);
  }
  *ret_generation = std::move(result);
  return {};
}

}  // namespace hvd::elastic

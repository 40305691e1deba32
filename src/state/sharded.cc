// What shards add to a state: registration, and their part in commit and sync.
#include <fmt/format.h>

#include <utility>

#include "numeric/dtype.h"
#include "state/flight.h"
#include "state/impl.h"

namespace hvd::state {

void State::Impl::add_shard(const std::string& key, ShardInfo info, GenerationSource source) {
  const collective::Tensor& tensor = info.tensor;
  Shard shard;
  shard.key = key;
  shard.dtype = tensor.dtype;
  shard.elements = info.global_elements;
  shard.copies = info.parity > 0 ? 0 : info.copies;
  shard.parity = info.parity;
  const Spec spec = shard.spec();
  checked_bytes(spec);
  if (tensor.shape.size() != 1) {
    throw Error(HVD_INVALID, fmt::format("state key '{}': a shard of {} dimensions: expected one", key,
                                         tensor.shape.size()));
  }
  check_served(key, tensor.memory);
  if (tensor.memory != HVD_MEMORY_HOST) {
    ShardOnDevice& device = shard.device.emplace();
    device.memory = tensor.memory;
    device.number = tensor.device;
    device.data = tensor.data;
    device.stream = tensor.stream;
  }
  shard.element_bytes = dtype_size(tensor.dtype);
  shard.reshard = std::move(info.reshard);
  shard.live = tensor.data;
  shard.begin = info.offset;
  if (info.offset < 0 || tensor.shape[0] > info.global_elements - info.offset) {
    throw Error(HVD_INVALID,
                fmt::format("state key '{}': {} elements from {}: expected a range within the {} "
                            "of the whole vector",
                            key, tensor.shape[0], info.offset, info.global_elements));
  }
  shard.end = info.offset + tensor.shape[0];
  if (shard.bytes() > 0 && shard.live == nullptr) {
    throw Error(HVD_INVALID,
                fmt::format("state key '{}': data is NULL: expected {} bytes", key, shard.bytes()));
  }
  Generation place;
  if (Status status = source(&place); !status.ok()) {
    place = {};  // between two generations: the next sync asks for the range
    place.rank = -1;
  }
  add(spec, {}, {}, {});
  try {
    shards.add(std::move(shard), place);
  } catch (...) {
    variables.erase(key);
    throw;
  }
  generation_source = std::move(source);
}

Status State::Impl::refuse(const Status& why) {
  Generation generation;
  if (!generation_source(&generation).ok()) return why;
  return shards.place(generation, revision() + 1, why);
}

Status State::Impl::promote(uint64_t revision) {
  const uint64_t ready = std::exchange(prepared, 0);
  {
    std::lock_guard lock(mutex);
    if (ready == 0 || ready != revision || summary.revision >= revision) return {};
  }
  const FeedPause pause(*this);
  shards.adopt();
  take_next();
  {
    std::lock_guard lock(mutex);
    summary.revision = revision;
    ++statistics.commits;
  }
  if (logger != nullptr)
    logger->info("state: revision {} was sealed before the generation was lost, and is the last commit",
                 revision);
  return restore();
}

Status State::Impl::sync_shards(collective::Engine& engine, uint64_t revision, bool fresh, Duration timeout,
                                SyncResult* result, bool* ret_lost) {
  Generation generation;
  Status local = generation_source(&generation);
  if (!local.ok()) return local;
  if (fresh) shards.forget();
  {
    const InCallback inside(*this);
    local = shards.fit(generation);
  }
  if (local.ok() && fresh) local = fetch(shards.device_ranges([](const Shard&) { return true; }));
  if (local.ok() && fresh) local = shards.take_live(generation, revision);
  // The reshard callbacks' time is the program's: each rank waits for others' from here on.
  const Time deadline = now() + timeout;
  Status status;
  try {
    status =
        shards.sync(generation, engine, deadline, revision, static_cast<bool>(lost), local, result, ret_lost);
  } catch (const std::bad_alloc&) {
    if (generation.size() > 1) static_cast<void>(starved(engine, generation.rank, "a sync of shards"));
    status = {HVD_INTERNAL, "out of memory: sync of shards"};
  }
  if (status.ok()) status = put_back_shards();
  if (!status.ok()) return status;
  const uint64_t own = shards.own_bytes(), held = shards.held_bytes();
  std::lock_guard lock(mutex);
  statistics.shard_bytes = own;
  statistics.copy_bytes = held;
  return {};
}

/// The program loads everything from elsewhere. What it loads counts as a newer revision than what was lost.
Status State::Impl::reload(const Status& why, uint64_t revision) {
  if (logger != nullptr) logger->warning("{}; the program loads its own", why.message);
  int32_t code = 0;
  {
    const InCallback inside(*this);
    code = lost(why.message.c_str());
  }
  Status status;
  if (code != 0) {
    status = {HVD_CALLBACK_FAILED, fmt::format("the callback for lost shards returned {}: expected 0", code)};
  }
  shards.forget();
  std::lock_guard lock(mutex);
  has_commit = false;
  summary.has_state = false;
  summary.revision = revision + 1;
  return status;
}

Status State::Impl::has_anybody_joined(bool* ret_joined) {
  *ret_joined = false;
  Generation generation;
  if (Status status = generation_source(&generation); !status.ok()) return status;
  if (generation.size() == 1) return {};
  const uint8_t here = 1;
  std::vector<uint8_t> all;
  Status status =
      gather(*generation.engine, now() + generation.timeout, "hvd.shards.here", &here, sizeof(here), &all);
  if (status.ok()) *ret_joined = std::ssize(all) < generation.size();
  return status;
}

Status State::Impl::hand_over() {
  if (shards.empty()) return {};
  Generation generation;
  if (Status status = generation_source(&generation); !status.ok()) return status;
  try {
    return shards.hand_over(generation);
  } catch (const std::bad_alloc&) {
    if (generation.engine == nullptr) return {HVD_INTERNAL, "out of memory: shards of those that leave"};
    return starved(*generation.engine, generation.rank, "what those that leave hand over");
  }
}

}  // namespace hvd::state

// Shards in device memory. Host memory stands for each: commits are copied from there, restores and syncs
// write there, and nothing else of a state tells them from shards of the host.
#include <fmt/format.h>

#include <algorithm>

#include "state/shards.h"

namespace hvd::state {

/// Host memory for a shard in device memory, whose range may be new.
Status Shards::stage(Shard* shard) const {
  if (!shard->device) return {};
  Memory& stage = shard->device->stage;
  shard->device->behind = false;
  if (!shard->staged()) {
    stage = {};
    shard->live = nullptr;
    Status status = Memory::allocate(copies_, shard->device->memory, shard->bytes(), &stage);
    if (!status.ok()) {
      status.message = fmt::format("{} bytes of host memory for state key '{}': {}", shard->bytes(),
                                   shard->key, status.message);
      return status;
    }
  }
  shard->live = stage.data();
  return {};
}

Status Shards::stage() {
  for (Shard& shard : shards_) {
    if (shard.staged()) continue;
    if (Status status = stage(&shard); !status.ok()) return status;
  }
  return {};
}

bool Shards::on_device() const {
  return std::any_of(shards_.begin(), shards_.end(),
                     [](const Shard& shard) { return shard.device.has_value(); });
}

std::vector<DeviceRange> Shards::device_ranges(const OfShard& wanted) const {
  std::vector<DeviceRange> ranges;
  for (const Shard& shard : shards_) {
    if (!shard.device || shard.bytes() == 0 || !shard.staged() || !wanted(shard)) continue;
    const ShardOnDevice& device = *shard.device;
    ranges.push_back({device.memory, device.number, device.stream, device.data, shard.live, shard.bytes()});
  }
  return ranges;
}

std::vector<DeviceRange> Shards::behind() const {
  return device_ranges([](const Shard& shard) { return shard.device->behind; });
}

void Shards::caught_up() {
  for (Shard& shard : shards_) {
    if (shard.device) shard.device->behind = false;
  }
}

void Shards::leak() noexcept {
  for (Shard& shard : shards_) {
    if (shard.device) shard.device->stage.leak();
  }
}

}  // namespace hvd::state

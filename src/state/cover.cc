// Keys that were registered after the last commit: before a sync their live values join it. What it has of
// the other keys stays as it is, and so does a commit that is prepared: their live values may be anything.
#include <fmt/format.h>

#include <utility>

#include "state/impl.h"
#include "state/pages.h"

namespace hvd::state {

Status State::Impl::fetch(const std::vector<DeviceRange>& ranges) {
  if (ranges.empty()) return {};
  const uint64_t epoch = copies->epoch();
  const Status gone(HVD_PEER_LOST, "state: the generation is lost: what devices hold is undefined");
  if (DeviceCopies::is_lost(epoch)) return gone;
  Status status = carry(DeviceCopies::Way::kToHost, ranges);
  if (copies->epoch() != epoch) return gone;
  if (!status.ok()) status.message = fmt::format("state: device memory can't be copied: {}", status.message);
  return status;
}

Status State::Impl::take_from_devices() {
  const auto is_new = [](const Variable& v) { return v.on_device() && !v.committed; };
  std::vector<PieceCopy> list;
  for (auto& [key, variable] : variables) {
    if (!is_new(variable)) continue;
    variable.copy.pieces = {};
    variable.copy.pieces.fit(variable.bytes);
    append_pieces(nullptr, variable.copy.memory.data(), variable.bytes, &variable.copy.pieces, &list);
  }
  if (Status status = shards.stage(); !status.ok()) return status;
  std::vector<DeviceRange> ranges =
      device_ranges([&](const Variable& v) { return is_new(v) ? &v.copy.memory : nullptr; });
  const std::vector<DeviceRange> of_shards =
      shards.device_ranges([&](const Shard& shard) { return !variables.at(shard.key).committed; });
  ranges.insert(ranges.end(), of_shards.begin(), of_shards.end());
  if (Status status = fetch(ranges); !status.ok()) return status;
  if (list.empty()) return {};
  const DeviceCopies::Use use(*copies);
  if (!use) return {HVD_CLOSED, "the context is closed"};
  copy_pieces(list, true);
  return {};
}

Status State::Impl::cover() {
  if (Status status = settle(); !status.ok()) {
    if (status.code == HVD_TIMEOUT) return status;
    if (logger != nullptr) logger->warning("{}", status.message);
  }
  std::vector<std::span<uint8_t>> fresh;
  std::vector<Variable*> added;
  std::vector<std::string> sharded;
  for (auto& [key, variable] : variables) {
    if (variable.committed) continue;
    added.push_back(&variable);
    if (variable.spec.kind == VariableKind::kShard) sharded.push_back(key);
    Status status;
    if (variable.is_object()) status = run_save(variable);
    if (status.ok()) status = make_room(variable, &variable.copy, &fresh);
    if (!status.ok()) return status;
  }
  if (!fresh.empty()) get_pages(fresh);
  if (Status status = take_from_devices(); !status.ok()) return status;
  const FeedPause pause(*this);
  // All that can fail comes before anything is written (contract 4).
  std::vector<PieceCopy> list;
  for (Variable* variable : added) {
    if (variable->is_object()) {
      variable->append_saved(&variable->copy, &list);
    } else if (!variable->on_device()) {
      variable->copy.pieces.fit(variable->bytes);
      append_pieces(variable->copy.memory.data(), variable->live, variable->bytes, &variable->copy.pieces,
                    &list);
    }
  }
  if (Status status = shards.cover(sharded, summary.revision); !status.ok()) return status;
  for (Variable* variable : added) {
    if (variable->is_object()) variable->take_saved(&variable->copy);
  }
  const uint64_t written = copy_pieces(list, true);
  for (Variable* variable : added) {
    variable->digest = variable->copy.pieces.content();
    variable->committed = true;
    variable->fed = false;
  }
  const Digest digest = total();
  const uint64_t bytes = committed_bytes() + shards.own_bytes();
  std::lock_guard lock(mutex);
  summary.digest = digest;
  statistics.bytes = bytes;
  statistics.written_bytes += written;
  return {};
}

}  // namespace hvd::state

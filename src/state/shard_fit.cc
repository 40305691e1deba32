// Before a sync: this rank's ranges in a new generation, and live values where there is no commit yet.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "state/shards.h"

namespace hvd::state {

Status Shards::fit(const Generation& generation) {
  const int32_t rank = generation.rank, size = generation.size();
  for (uint32_t key = 0; key < shards_.size(); ++key) {
    Shard& shard = shards_[key];
    if (shard.rank == rank && shard.size == size) continue;
    const ShardRange even = even_range(key, shard.elements, rank, size);
    if (!shard.reshard) {
      if (even.begin != shard.begin || even.end != shard.end) {
        return {HVD_INVALID,
                fmt::format("state key '{}' has elements {} to {} and no reshard callback: rank {} of {} "
                            "needs {} to {}",
                            shard.key, shard.begin, shard.end - 1, rank, size, even.begin, even.end - 1)};
      }
      shard.rank = rank;
      shard.size = size;
      continue;
    }
    hvd_shard asked{};
    asked.struct_size = sizeof(asked);
    asked.key = shard.key.c_str();
    asked.dtype = shard.dtype;
    asked.rank = rank;
    asked.size = size;
    asked.global_elements = shard.elements;
    asked.offset = even.begin;
    asked.elements = even.elements();
    asked.data = shard.device ? shard.device->data : shard.live;
    const int32_t code = shard.reshard(&asked);
    if (code != 0) {
      Status status(HVD_CALLBACK_FAILED, fmt::format("reshard callback of state key '{}' returned {}: "
                                                     "expected 0",
                                                     shard.key, code));
      status.vendor_code = code;
      return status;
    }
    const bool within = asked.offset >= 0 && asked.elements >= 0 && asked.elements <= shard.elements &&
                        asked.offset <= shard.elements - asked.elements;
    if (!within || (asked.elements > 0 && asked.data == nullptr)) {
      return {HVD_CALLBACK_FAILED,
              fmt::format("reshard callback of state key '{}' gave {} elements from {}{}: expected memory "
                          "for a range within the {} of the whole vector",
                          shard.key, asked.elements, asked.offset,
                          asked.data == nullptr ? " without memory" : "", shard.elements)};
    }
    (shard.device ? shard.device->data : shard.live) = asked.data;
    shard.begin = asked.offset;
    shard.end = asked.offset + asked.elements;
    shard.stale = true;
    if (Status status = stage(&shard); !status.ok()) return status;
    shard.rank = rank;
    shard.size = size;
  }
  return {};
}

Status Shards::take_live(const Generation& generation, uint64_t revision) {
  std::vector<PieceCopy> pieces;
  if (Status status = begin(generation, &pieces, &pieces); !status.ok()) return status;
  copy_pieces(pieces, true);
  for (Segment& segment : next_.own->segments) segment.digest = segment.pieces.content();
  sealed_.own = std::move(next_.own);
  sealed_.revision = revision;
  sealed_.whole = true;
  next_ = {};
  for (Shard& shard : shards_) shard.stale = false;
  return {};
}

Status Shards::cover(const std::vector<std::string>& keys, uint64_t revision) {
  std::vector<Segment> list;
  size_t at = 0;
  for (uint32_t key = 0; key < shards_.size(); ++key) {
    if (std::find(keys.begin(), keys.end(), shards_[key].key) == keys.end()) continue;
    Segment& segment = list.emplace_back();
    segment.range = {key, shards_[key].begin, shards_[key].end};
    segment.at = at;
    segment.bytes = shards_[key].bytes();
    at += whole_lines(segment.bytes);
  }
  if (list.empty()) return {};
  ParcelPtr added;
  try {
    added = parcel(std::move(list), -1);
  } catch (const std::bad_alloc&) {
    return {HVD_INTERNAL, fmt::format("out of memory: {} bytes for the copy of new shards", at)};
  }
  std::vector<PieceCopy> pieces;
  for (Segment& segment : added->segments) {
    segment.pieces.fit(segment.bytes);
    append_pieces(added->data(segment), shards_[segment.range.key].live, segment.bytes, &segment.pieces,
                  &pieces);
  }
  copy_pieces(pieces, true);
  for (Segment& segment : added->segments) segment.digest = segment.pieces.content();
  if (!sealed_.whole) {  // commits had no shards so far
    sealed_ = {};
    sealed_.revision = revision;
    sealed_.whole = true;
  }
  sealed_.held.push_back(added);
  if (next_.whole) next_.held.push_back(added);
  return {};
}

}  // namespace hvd::state

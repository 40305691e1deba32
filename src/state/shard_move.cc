// Packs what travels by the backend; copies and reads the rest piece by piece.
#include "state/shard_move.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "state/pages.h"
#include "state/shard_wire.h"
#include "state/sync_plan.h"

namespace hvd::state {
namespace {

/// Moves that travel as one.
struct Freight {
  std::vector<size_t> moves;
  uint64_t bytes = 0;
};

std::vector<Freight> pack(const std::vector<ShardMove>& moves, const std::vector<uint64_t>& element_bytes) {
  std::vector<Freight> all;
  std::map<std::pair<int32_t, std::vector<int32_t>>, size_t> open;
  for (size_t i = 0; i < moves.size(); ++i) {
    const uint64_t bytes =
        static_cast<uint64_t>(moves[i].range.elements()) * element_bytes[moves[i].range.key];
    if (bytes < kPackBelow) {
      const std::pair ends(moves[i].source, moves[i].receivers);
      const auto found = open.find(ends);
      if (found != open.end() && all[found->second].bytes + bytes <= kPackLimit) {
        all[found->second].moves.push_back(i);
        all[found->second].bytes += bytes;
        continue;
      }
      open[ends] = all.size();
    }
    all.push_back({{i}, bytes});
  }
  return all;
}

}  // namespace

Carriage::Carriage(collective::Engine& engine, Time deadline, int32_t rank,
                   const std::vector<uint64_t>& element_bytes, const std::vector<ParcelPtr>& from,
                   const std::vector<ParcelPtr>& to)
    : rank_(rank), element_bytes_(element_bytes), from_(from), to_(to), flight_(engine, deadline) {
  for (const auto* parcels : {&from, &to}) {
    for (const ParcelPtr& parcel : *parcels) flight_.keep(parcel);
  }
}

Status Carriage::start(const std::vector<ShardMove>& moves) {
  for (const Freight& freight : pack(moves, element_bytes_)) {
    const ShardMove& first = moves[freight.moves[0]];
    const bool sends = first.source == rank_;
    if (!sends && !std::binary_search(first.receivers.begin(), first.receivers.end(), rank_)) continue;
    const bool single = freight.moves.size() == 1;
    uint8_t* data = single ? nullptr : flight_.room(freight.bytes);
    size_t at = 0;
    for (const size_t i : freight.moves) {
      const ShardRange& range = moves[i].range;
      const size_t bytes = static_cast<size_t>(range.elements()) * element_bytes_[range.key];
      const ShardSpot spot = find(sends ? from_ : to_, range, element_bytes_[range.key]);
      if (spot.data == nullptr) return {HVD_INTERNAL, "state: a plan of shards does not fit what is there"};
      if (single) data = spot.data;
      if (!single && sends) std::memcpy(data + at, spot.data, bytes);
      if (!single && !sends) packed_.push_back({data + at, spot.data, bytes});
      at += bytes;
    }
    std::vector<int32_t> members = first.receivers;
    members.insert(std::upper_bound(members.begin(), members.end(), first.source), first.source);
    flight_.submit(one_to_some(fmt::format("hvd.shards.move.{}", freight.moves[0]), first.source,
                               std::move(members), data, freight.bytes));
  }
  return {};
}

Status Carriage::land() {
  if (Status status = flight_.land(); !status.ok()) return status;
  for (const Unpack& part : packed_) std::memcpy(part.to, part.from, part.bytes);
  packed_.clear();
  return {};
}

std::vector<Filling::Span> Filling::spans_of(const Segment& segment) const {
  const ShardRange& wanted = segment.range;
  const uint64_t element = element_bytes_[wanted.key];
  std::vector<Span> found;
  const auto add = [&](const ShardRange& has, const uint8_t* here, const Read* read, uint64_t address) {
    if (has.key != wanted.key) return;
    const int64_t begin = std::max(has.begin, wanted.begin), end = std::min(has.end, wanted.end);
    if (begin >= end) return;
    const uint64_t skip = static_cast<uint64_t>(begin - has.begin) * element;
    found.push_back({static_cast<size_t>(begin - wanted.begin) * element,
                     static_cast<size_t>(end - wanted.begin) * element,
                     here == nullptr ? nullptr : here + skip, read, address + skip});
  };
  for (const ParcelPtr& parcel : from_) {
    for (const Segment& source : parcel->segments) add(source.range, parcel->data(source), nullptr, 0);
  }
  for (const Read& read : reads_) add(read.range, nullptr, &read, read.address);
  std::sort(found.begin(), found.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> spans;
  size_t at = 0;
  for (Span& span : found) {
    if (span.end <= at) continue;  // there is more than one of it
    if (span.begin > at) spans.push_back({at, span.begin, nullptr, nullptr, 0});
    if (span.begin < at) {
      if (span.here != nullptr) span.here += at - span.begin;
      span.address += at - span.begin;
      span.begin = at;
    }
    at = span.end;
    spans.push_back(span);
  }
  if (at < segment.bytes) spans.push_back({at, segment.bytes, nullptr, nullptr, 0});
  return spans;
}

void Filling::add(Parcel& to, Segment& segment, uint8_t* live) {
  segment.pieces = {};
  segment.pieces.fit(segment.bytes);
  const std::vector<Span>& spans = spans_.emplace_back(spans_of(segment));
  size_t first = 0;
  for (size_t at = 0; at < segment.bytes; at += kPiece) {
    const size_t size = std::min(kPiece, segment.bytes - at);
    while (spans[first].end <= at) ++first;
    bool waits = false;
    for (size_t i = first; i < spans.size() && spans[i].begin < at + size; ++i)
      waits = waits || (spans[i].here == nullptr && spans[i].read == nullptr);
    (waits ? waiting_ : ready_)
        .push_back({to.data(segment) + at, live == nullptr ? nullptr : live + at, at, size, &segment.pieces,
                    &spans, first});
  }
}

int32_t Filling::fill_one(const Piece& piece) {
  const std::vector<Span>& spans = *piece.spans;
  const size_t end = piece.at + piece.size;
  bool arrives = false;
  for (size_t i = piece.first; i < spans.size() && spans[i].begin < end; ++i)
    arrives = arrives || (spans[i].here == nullptr && spans[i].read == nullptr);
  const size_t index = piece.at / kPiece;
  const Span& only = spans[piece.first];
  if (piece.live == nullptr && only.end >= end && only.here != nullptr) {
    copy_piece({piece.to, only.here + (piece.at - only.begin), piece.size, piece.pieces, index});
    return -1;
  }
  // Live memory comes first: what follows is a copy that does not go through the caches.
  uint8_t* const to = piece.live == nullptr || arrives ? piece.to : piece.live;
  for (size_t i = piece.first; i < spans.size() && spans[i].begin < end; ++i) {
    const Span& span = spans[i];
    const size_t from = std::max(span.begin, piece.at), size = std::min(span.end, end) - from;
    if (span.here != nullptr) {
      std::memcpy(to + (from - piece.at), span.here + (from - span.begin), size);
    } else if (span.read != nullptr && !read_from(*span.read->reach, span.address + (from - span.begin),
                                                  to + (from - piece.at), size)) {
      return span.read->source;
    }
  }
  copy_piece({to == piece.to ? nullptr : piece.to, to, piece.size, piece.pieces, index});
  if (arrives && piece.live != nullptr) std::memcpy(piece.live, piece.to, piece.size);
  return -1;
}

/// Pages for the live memory of pieces that follow each other.
void Filling::touch_live(std::span<const Piece> pieces) {
  while (!pieces.empty()) {
    size_t count = 1, size = pieces[0].size;
    for (; pieces[0].live != nullptr && count < pieces.size() && pieces[count].live == pieces[0].live + size;
         ++count) {
      size += pieces[count].size;
    }
    if (pieces[0].live != nullptr) touch(pieces[0].live, size);
    pieces = pieces.subspan(count);
  }
}

Status Filling::run(std::vector<Piece>* pieces) {
  uint64_t bytes = 0;
  for (const Piece& piece : *pieces) bytes += piece.size;
  std::atomic<int32_t> failed{-1};
  // A few pieces at a time: live memory gets its pages just before they are written.
  constexpr size_t kFew = 8;
  in_parallel((pieces->size() + kFew - 1) / kFew, bytes, [&](size_t group) {
    const size_t first = group * kFew;
    const auto some = std::span(*pieces).subspan(first, std::min(kFew, pieces->size() - first));
    touch_live(some);
    for (const Piece& piece : some) {
      if (failed.load(std::memory_order_relaxed) >= 0) return;
      if (const int32_t whose = fill_one(piece); whose >= 0) failed = whose;
    }
  });
  pieces->clear();
  if (failed < 0) return {};
  Status status(HVD_PEER_LOST,
                fmt::format("state: the shards of rank {} can't be read any more", failed.load()));
  return status.at_rank(failed);
}

}  // namespace hvd::state

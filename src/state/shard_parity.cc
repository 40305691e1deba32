// Parity of shards among ranks: makes the blocks, and makes again what was lost. Members on one machine read
// each other's memory; between machines chunks travel in windows, so that little memory is needed besides.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <utility>

#include "state/flight.h"
#include "state/pages.h"
#include "state/shard_check.h"
#include "state/shard_tables.h"
#include "state/shard_wire.h"
#include "state/shards.h"

namespace hvd::state {
namespace {

constexpr size_t kUnderWay = 16;       // windows of this rank
constexpr size_t kScratch = 96 << 10;  // stays in a core's cache

/// Bytes that go from one rank to another, which adds them to what it has.
struct Stream {
  std::string name;
  int32_t source = 0, receiver = 0;
  uint8_t* data = nullptr;  // at the source what is sent, at the receiver what it is added to
  uint64_t bytes = 0;
  const Digest* digest = nullptr;  // what its bytes have to have when they arrive; NULL: nobody has told
  std::string what = {};           // with a digest
};

Status altered(const Stream& stream) {
  Status status(HVD_PEER_LOST,
                fmt::format("state: what came from rank {} to rank {} of {} is not what it has committed",
                            stream.source, stream.receiver, stream.what));
  return status.at_rank(stream.source);
}

/// All ranks have their streams in one order. A rank sends and receives some windows at a time in that order,
/// so the first one of all that is not done is under way at both of its ends.
/// `room`: for a window that arrives, which is enough where there is no memory for more; none: it is got.
Status add_streams(const std::vector<Stream>& streams, int32_t rank, const std::vector<ParcelPtr>& keep,
                   const ParcelPtr& room, collective::Engine& engine, Time deadline, SyncResult* result) {
  struct Window {
    std::shared_ptr<collective::Operation> operation;
    uint8_t* to;    // NULL: it is sent
    uint8_t* room;  // what arrives
    uint64_t size;
    Digest* digest;  // of what arrives; NULL: it is not asked for
  };
  static_assert(kWindow == kPiece, "a stream's digest is that of its windows");
  std::vector<Pieces> arrived(streams.size());
  for (size_t i = 0; i < streams.size(); ++i) {
    if (streams[i].receiver == rank && streams[i].digest != nullptr) arrived[i].fit(streams[i].bytes);
  }
  Flight flight(engine, deadline);
  for (const ParcelPtr& parcel : keep) flight.keep(parcel);
  std::deque<Window> under_way;
  std::vector<uint8_t*> rooms;
  if (room != nullptr) {
    rooms.push_back(room->memory.data());
    flight.keep(room);
  }
  const auto land_one = [&] {
    const Window window = std::move(under_way.front());
    under_way.pop_front();
    Status status = flight.arrive(*window.operation);
    if (!status.ok()) return status;
    if (window.to == nullptr) return status;
    if (window.digest != nullptr) *window.digest = digest(window.room, window.size);
    add_bytes(window.to, window.room, window.size);
    rooms.push_back(window.room);
    return status;
  };
  bool more = true;
  for (uint64_t at = 0; std::exchange(more, false); at += kWindow) {
    for (size_t i = 0; i < streams.size(); ++i) {
      const Stream& stream = streams[i];
      if (at >= stream.bytes) continue;
      more = true;
      if (under_way.size() == kUnderWay) {
        if (Status status = land_one(); !status.ok()) return status;
      }
      Window window{nullptr, nullptr, stream.data + at, std::min(kWindow, stream.bytes - at), nullptr};
      if (stream.receiver == rank) {
        if (!arrived[i].digests.empty()) window.digest = &arrived[i].digests[at / kWindow];
        window.to = stream.data + at;
        try {
          if (rooms.empty()) rooms.push_back(flight.room(kWindow));
        } catch (const std::bad_alloc&) {
          if (room == nullptr) throw;
        }
        while (rooms.empty()) {
          if (Status status = land_one(); !status.ok()) return status;
        }
        window.room = rooms.back();
        rooms.pop_back();
      }
      (stream.source == rank ? result->sent_bytes : result->received_bytes) += window.size;
      window.operation = flight.submit(
          one_to_some(fmt::format("{}.{}", stream.name, at / kWindow), stream.source,
                      {std::min(stream.source, stream.receiver), std::max(stream.source, stream.receiver)},
                      window.room, window.size));
      under_way.push_back(std::move(window));
    }
  }
  while (!under_way.empty()) {
    if (Status status = land_one(); !status.ok()) return status;
  }
  if (Status status = flight.land(); !status.ok()) return status;
  for (size_t i = 0; i < streams.size(); ++i) {
    if (!arrived[i].digests.empty() && arrived[i].content() != *streams[i].digest) return altered(streams[i]);
  }
  return {};
}

/// A member's chunk in the memory of its process.
struct Chunk {
  const ParcelPlace* place;
  int32_t owner;
  uint64_t at, bytes;  // within its parcel
};

Status unreadable_rank(int32_t rank) {
  Status status(HVD_PEER_LOST, fmt::format("state: the shards of rank {} can't be read any more", rank));
  return status.at_rank(rank);
}

/// Adds up chunks of other processes, each piece in one go. Throws std::bad_alloc.
Status add_chunks(uint8_t* sum, uint64_t size, const std::vector<Chunk>& chunks) {
  std::atomic<int32_t> failed{-1};
  std::atomic<bool> starved{false};
  in_parallel(pieces_of(size), size * chunks.size(), [&](size_t index) {
    const std::unique_ptr<uint8_t[]> scratch(new (std::nothrow) uint8_t[kScratch]);
    if (scratch == nullptr) {
      starved = true;
      return;
    }
    const uint64_t begin = index * kPiece, end = std::min(size, begin + kPiece);
    touch(sum + begin, end - begin);
    for (uint64_t at = begin; at < end; at += kScratch) {
      const uint64_t length = std::min(kScratch, end - at);
      uint64_t filled = 0;  // the first chunk needs no sum
      for (const Chunk& chunk : chunks) {
        if (at >= chunk.bytes) continue;
        const uint64_t bytes = std::min(length, chunk.bytes - at);
        uint8_t* const to = filled == 0 ? sum + at : scratch.get();
        if (!read_from(chunk.place->reach, chunk.place->address + chunk.at + at, to, bytes)) {
          failed = chunk.owner;
          return;
        }
        if (filled == 0) {
          filled = bytes;
          std::memset(sum + at + bytes, 0, length - bytes);
        } else {
          add_bytes(sum + at, scratch.get(), bytes);
        }
      }
      if (filled == 0) std::memset(sum + at, 0, length);
    }
  });
  if (starved) throw std::bad_alloc();
  return failed < 0 ? Status() : unreadable_rank(failed);
}

}  // namespace

std::vector<std::vector<ShardRange>> Shards::stripes(const ShardLayout& layout,
                                                     const std::vector<int32_t>& group,
                                                     int32_t parity) const {
  std::vector<std::vector<ShardRange>> members;
  for (const int32_t rank : group) {
    std::vector<ShardRange>& stripe = members.emplace_back();
    for (const uint32_t key : order_) {
      if (shards_[key].parity == parity) stripe.push_back(layout.own[static_cast<size_t>(rank)][key]);
    }
  }
  return members;
}

std::vector<ParityBlock> Shards::blocks_of(const ShardLayout& layout, int32_t rank) const {
  std::vector<ParityBlock> blocks;
  for (const auto& [parity, groups] : layout.groups) {
    for (const std::vector<int32_t>& group : groups) {
      const auto place = std::find(group.begin(), group.end(), rank);
      if (place == group.end() || group.size() < 2) continue;
      ParityBlock block = parity_block(stripes(layout, group, parity),
                                       static_cast<uint64_t>(place - group.begin()), element_bytes());
      if (block.chunk > 0) blocks.push_back(std::move(block));
    }
  }
  return blocks;
}

bool Shards::sends_parity(const ShardLayout& layout) const {
  for (const auto& [parity, groups] : layout.groups) {
    if (reads_.empty()) return true;
    for (const std::vector<int32_t>& group : groups) {
      for (const int32_t to : group) {
        for (const int32_t from : group) {
          if (to != from && (reads_[static_cast<size_t>(to)][static_cast<size_t>(from)] & kReads) == 0)
            return true;
        }
      }
    }
  }
  return false;
}

Status Shards::tell_places(const Set& next, int32_t rank, collective::Engine& engine, Time deadline) {
  ParcelPlace mine;
  if (reads_others_) mine = {own_reach(), reinterpret_cast<uint64_t>(next.own->memory.data()), {}};
  std::vector<uint8_t> all;
  Status status = gather(engine, deadline, "hvd.shards.places", &mine, sizeof(mine), &all);
  if (!status.ok()) return status;
  const size_t size = next.layout->own.size();
  if (all.size() != size * sizeof(ParcelPlace)) return unreadable("where their shards are");
  places_.resize(size);
  std::memcpy(places_.data(), all.data(), all.size());
  maps_.clear();
  return agree_on_reads(*next.layout, rank, {}, engine, deadline);
}

Status Shards::make_parity(Set* next, int32_t rank, const std::vector<std::vector<Digest>>* has,
                           collective::Engine& engine, Time deadline, SyncResult* result) {
  const ShardLayout& layout = *next->layout;
  const std::vector<uint64_t> elements = element_bytes();
  /// Where the stripe begins in the parcel of `owner`.
  const auto stripe_in_parcel = [&](int32_t owner, int32_t parity) {
    uint64_t at = 0;
    for (const uint32_t key : order_) {
      if (shards_[key].parity == parity) break;
      const ShardRange& range = layout.own[static_cast<size_t>(owner)][key];
      at += whole_lines(static_cast<uint64_t>(range.elements()) * elements[key]);
    }
    return at;
  };
  std::vector<Stream> streams;
  std::vector<Parity> made;
  for (const auto& [parity, groups] : layout.groups) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const std::vector<int32_t>& ranks) {
      return std::binary_search(ranks.begin(), ranks.end(), rank);
    });
    if (group == groups.end() || group->size() < 2) continue;
    const auto members = stripes(layout, *group, parity);
    for (size_t slot = 0; slot < group->size(); ++slot) {
      ParityBlock block = parity_block(members, slot, elements);
      const int32_t receiver = (*group)[slot];
      if (block.chunk == 0) break;
      if (has != nullptr) {
        const std::vector<Digest>& there = (*has)[static_cast<size_t>(receiver)];
        if (std::find(there.begin(), there.end(), identity(block)) != there.end()) continue;
      }
      uint8_t* sum = nullptr;
      if (receiver == rank) {
        Segment whole;
        whole.bytes = block.chunk;
        made.push_back({block, parcel({whole}, kNobody)});
        sum = made.back().sum->memory.data();
      }
      std::vector<Chunk> direct;
      for (size_t member = 0; member < group->size(); ++member) {
        const int32_t source = (*group)[member];
        const uint64_t from = block.chunk * chunk_of(member, slot);
        const uint64_t length = stripe_bytes(members[member], elements);
        if (member == slot || from >= length) continue;
        const uint64_t at = stripe_in_parcel(source, parity) + from;
        const uint64_t bytes = std::min(block.chunk, length - from);
        if (!reads_.empty() &&
            (reads_[static_cast<size_t>(receiver)][static_cast<size_t>(source)] & kReads) != 0) {
          if (receiver == rank) direct.push_back({&places_[static_cast<size_t>(source)], source, at, bytes});
        } else if (source == rank || receiver == rank) {
          uint8_t* const data = source == rank ? next->own->memory.data() + at : sum;
          streams.push_back(
              {fmt::format("hvd.parity.{}.{}.{}", parity, source, receiver), source, receiver, data, bytes});
        }
      }
      if (receiver != rank) continue;
      if (Status status = add_chunks(sum, block.chunk, direct); !status.ok()) return status;
    }
  }
  // One that a commit has got and did not come to use is of another layout.
  const ParcelPtr room = has == nullptr ? std::exchange(window_, nullptr) : nullptr;
  std::vector<ParcelPtr> keep = {next->own};
  for (const Parity& parity : made) keep.push_back(parity.sum);
  if (Status status = add_streams(streams, rank, keep, room, engine, deadline, result); !status.ok())
    return status;
  std::vector<PieceCopy> pieces;
  for (const Parity& parity : made) {
    Segment& whole = parity.sum->segments[0];
    whole.pieces = {};
    whole.pieces.fit(whole.bytes);
    append_pieces(nullptr, parity.sum->data(whole), whole.bytes, &whole.pieces, &pieces);
  }
  copy_pieces(pieces, true);
  for (Parity& parity : made) {
    parity.sum->segments[0].digest = parity.sum->segments[0].pieces.content();
    next->parity.push_back(std::move(parity));
  }
  return {};
}

Status Shards::gather_parity(const std::vector<ParityBlock>& mine, int32_t rank, int32_t size,
                             collective::Engine& engine, Time deadline,
                             std::vector<std::vector<ParityBlock>>* ret_blocks) const {
  const std::vector<uint8_t> bytes = write_parity_table(mine);
  std::vector<uint8_t> all = bytes;
  if (size > 1) {
    Status status = gather(engine, deadline, "hvd.shards.parity", bytes.data(), bytes.size(), &all);
    if (!status.ok()) return status;
  }
  return read_parity_tables(all, static_cast<size_t>(size), static_cast<size_t>(rank), bytes, lengths(),
                            element_bytes(), ret_blocks)
             ? Status()
             : unreadable("parity");
}

Status Shards::repair(int32_t rank, int32_t size, collective::Engine& engine, Time deadline,
                      SyncResult* result, ShardTables* tables, std::vector<ParcelPtr>* bag,
                      std::vector<ShardRange>* lost, bool* ret_dropped) {
  std::vector<ParityBlock> mine;
  for (const Parity& parity : sealed_.parity) mine.push_back(parity.block);
  std::vector<std::vector<ParityBlock>> blocks;
  if (Status status = gather_parity(mine, rank, size, engine, deadline, &blocks); !status.ok()) return status;
  const std::vector<uint64_t> elements = element_bytes();
  const ParityPlan plan = plan_repairs(tables->has, blocks, *lost, elements);
  *lost = plan.left;
  if (!lost->empty()) return {};
  ShardCheck check;
  check.tells = true;
  for (const ParityRepair& repair : plan.repairs) {
    for (const ParityInput& input : repair.inputs) check.uses.push_back({input.range, input.source, {}});
    check.sums.push_back({repair.holder, repair.block, repair.range});
  }
  if (Status status = check_uses(&check, rank, engine, deadline, tables, bag, ret_dropped);
      !status.ok() || *ret_dropped) {
    return status;
  }

  uint64_t room = 0;
  for (const ParityRepair& repair : plan.repairs) room += repair.holder == rank ? repair.bytes : 0;
  auto made = std::make_shared<Parcel>();
  made->memory = Memory(room);
  if (room > 0) get_pages({{made->memory.data(), room}});
  std::vector<Stream> streams;
  uint64_t at = 0;
  size_t use = 0;
  for (size_t number = 0; number < plan.repairs.size(); ++number) {
    const ParityRepair& repair = plan.repairs[number];
    tables->has[static_cast<size_t>(repair.holder)].push_back(repair.range);
    uint8_t* target = nullptr;
    if (repair.holder == rank) {
      const ParcelPtr& sum = sealed_.parity[repair.block].sum;
      target = made->memory.data() + at;
      std::memcpy(target, sum->memory.data() + repair.at, repair.bytes);
      Segment& segment = made->segments.emplace_back();
      segment.range = repair.range;
      segment.at = at + repair.skip;
      segment.bytes = static_cast<size_t>(repair.range.elements()) * elements[repair.range.key];
      at += repair.bytes;
    }
    for (size_t i = 0; i < repair.inputs.size(); ++i) {
      const ParityInput& input = repair.inputs[i];
      const Digest* const digest = &check.uses[use++].digest;
      if (input.source != rank && repair.holder != rank) continue;
      const uint64_t length = static_cast<uint64_t>(input.range.elements()) * elements[input.range.key];
      uint8_t* data = target == nullptr ? nullptr : target + input.offset;
      if (input.source == rank) {
        const ShardSpot spot = find(*bag, input.range, elements[input.range.key]);
        if (spot.data == nullptr) return {HVD_INTERNAL, "state: a plan of parity does not fit what is there"};
        if (repair.holder == rank) {
          add_bytes(data, spot.data, length);
          continue;
        }
        data = spot.data;
      }
      streams.push_back({fmt::format("hvd.repair.{}.{}", number, i), input.source, repair.holder, data,
                         length, digest, told(input.range)});
    }
  }
  std::vector<ParcelPtr> keep = *bag;
  keep.push_back(made);
  if (Status status = add_streams(streams, rank, keep, nullptr, engine, deadline, result); !status.ok())
    return status;
  if (room == 0) return {};
  for (Segment& segment : made->segments) {
    segment.digest = content_digest(made->data(segment), segment.bytes);
    const Digest* const committed = sealed_.layout ? sealed_.layout->digest_of(segment.range) : nullptr;
    if (committed == nullptr || *committed == segment.digest) continue;
    return {HVD_INTERNAL, fmt::format("state: what rank {} has made again of {} is not what was committed",
                                      rank, told(segment.range))};
  }
  bag->push_back(made);
  sealed_.held.push_back(std::move(made));  // if this sync is cut off the next one has it
  return {};
}

}  // namespace hvd::state

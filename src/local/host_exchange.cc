// Allgather, reducescatter, alltoall and barrier on one host: every rank writes its blocks in one order and
// takes those of the others as they come.
#include <algorithm>
#include <numeric>

#include "base/stream_copy.h"
#include "local/host_collectives.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvd::local {
namespace {

// Cuts the largest of several parts so that readers begin while the writer still writes.
size_t block_bytes(size_t largest) { return std::clamp(largest / 4, size_t{32} << 10, kSegmentBytes); }

std::vector<size_t> offsets(std::span<const size_t> sizes) {
  std::vector<size_t> result(sizes.size());
  for (size_t i = 1; i < sizes.size(); ++i) result[i] = result[i - 1] + sizes[i - 1];
  return result;
}

size_t sum(std::span<const size_t> sizes) { return std::accumulate(sizes.begin(), sizes.end(), size_t{0}); }

/// Whether of so many bytes of a rank what it writes into its ring is best read from memory several pages at
/// a time: less than this in all still lies in caches.
bool fetches(const Team& team, size_t bytes) {
  constexpr size_t kFrom = size_t{128} << 20;
  return bytes >= kFrom / static_cast<size_t>(team.size());
}

/// What this rank writes into its ring: `blocks` of it, the k-th in segment k.
class Outgoing {
 public:
  /// bytes: of the operation, on this rank.
  Outgoing(Team& team, size_t bytes) : team_(team), fetch_(fetches(team, bytes)) {}

  bool writable() const { return team_.group.released(team_.segment(written_)); }
  void write(const uint8_t* data, size_t size, uint64_t number, std::span<const int32_t> readers) {
    const size_t segment = team_.segment(written_++);
    if (size > 0) copy_from(team_.group.segment(segment), data, size, fetch_);
    team_.group.put(segment, team_.stamp(number), readers);
  }

 private:
  Team& team_;
  const bool fetch_;
  uint64_t written_ = 0;
};

/// What goes from this rank to one member each: block j to the member at position p is number j * n + p.
/// The first blocks for all come before any second.
class Personal {
 public:
  Personal(Team& team, const uint8_t* input, std::span<const size_t> sizes, size_t block)
      : team_(team),
        outgoing_(team, sum(sizes)),
        input_(input),
        sizes_(sizes),
        offsets_(offsets(sizes)),
        block_(block) {
    const auto members = static_cast<size_t>(team.size());
    for (size_t p = 0; p < members; ++p) {
      if (p != static_cast<size_t>(team.me)) rounds_ = std::max(rounds_, Blocks{sizes[p], block}.count());
    }
    skip();
  }

  bool finished() const { return round_ >= rounds_; }
  bool write() {
    if (finished() || !outgoing_.writable()) return false;
    const int32_t reader = team_.members[to_];
    const Blocks blocks{sizes_[to_], block_};
    outgoing_.write(input_ + offsets_[to_] + blocks.first(round_), blocks.length(round_),
                    round_ * sizes_.size() + to_, {&reader, 1});
    ++to_;
    skip();
    return true;
  }

 private:
  void skip() {  // to the next block that there is
    for (; round_ < rounds_; ++round_, to_ = 0) {
      for (; to_ < sizes_.size(); ++to_) {
        if (to_ != static_cast<size_t>(team_.me) && round_ < Blocks{sizes_[to_], block_}.count()) return;
      }
    }
  }

  Team& team_;
  Outgoing outgoing_;
  const uint8_t* const input_;
  const std::span<const size_t> sizes_;
  const std::vector<size_t> offsets_;
  const size_t block_;
  size_t rounds_ = 0;
  size_t round_ = 0;
  size_t to_ = 0;  // position
};

/// Blocks that come from each member into one place each.
class Incoming {
 public:
  /// factor, term: block j of a member is number j * factor + term.
  Incoming(Team& team, uint8_t* output, std::span<const size_t> sizes, size_t block, size_t factor,
           size_t term)
      : team_(team),
        output_(output),
        sizes_(sizes),
        offsets_(offsets(sizes)),
        block_(block),
        factor_(factor),
        term_(term),
        stream_(streams(team, sum(sizes))),
        read_(sizes.size()) {}

  bool finished() const {
    for (size_t i = 1; i < sizes_.size(); ++i) {
      const size_t from = position(i);
      if (read_[from] < Blocks{sizes_[from], block_}.count()) return false;
    }
    return true;
  }

  bool read() {
    for (size_t i = 1; i < sizes_.size(); ++i) {
      const size_t from = position(i);
      const Blocks blocks{sizes_[from], block_};
      const size_t block = read_[from];
      if (block >= blocks.count()) continue;
      const uint64_t number = block * factor_ + term_;
      const std::optional<Found> found = find(team_, team_.members[from], number);
      if (!found.has_value()) continue;
      copy_to(output_ + offsets_[from] + blocks.first(block), found->data, blocks.length(block), stream_);
      release(team_, team_.members[from], *found, number);
      ++read_[from];
      return true;
    }
    return false;
  }

 private:
  size_t position(size_t i) const { return (static_cast<size_t>(team_.me) + i) % sizes_.size(); }

  Team& team_;
  uint8_t* const output_;
  const std::span<const size_t> sizes_;
  const std::vector<size_t> offsets_;
  const size_t block_, factor_, term_;
  const bool stream_;
  std::vector<size_t> read_;  // blocks, by position
};

}  // namespace

Task host_allgather(Team& team, const uint8_t* input, uint8_t* output, std::span<const size_t> sizes) {
  const auto me = static_cast<size_t>(team.me);
  const size_t block = block_bytes(*std::max_element(sizes.begin(), sizes.end()));
  const size_t mine = offsets(sizes)[me];
  const Blocks blocks{sizes[me], block};
  Outgoing outgoing(team, sum(sizes));
  Incoming incoming(team, output, sizes, block, 1, 0);
  size_t written = 0;
  bool kept = sizes[me] == 0 || input == output + mine;
  co_return co_await work(team.group, [&] {
    if (incoming.read()) return Step::kWorked;
    if (written < blocks.count() && outgoing.writable()) {
      outgoing.write(input + blocks.first(written), blocks.length(written), written, team.others);
      ++written;
      return Step::kWorked;
    }
    if (!kept) {
      std::memmove(output + mine, input, sizes[me]);
      kept = true;
      return Step::kWorked;
    }
    return written == blocks.count() && incoming.finished() ? Step::kDone : Step::kStuck;
  });
}

Task host_alltoall(Team& team, const uint8_t* input, uint8_t* output, std::span<const size_t> sent,
                   std::span<const size_t> received) {
  const auto members = static_cast<size_t>(team.size());
  const auto me = static_cast<size_t>(team.me);
  // What others exchange is unknown here: blocks are the same for all.
  const size_t block = kSegmentBytes;
  Personal outgoing(team, input, sent, block);
  Incoming incoming(team, output, received, block, members, me);
  if (sent[me] > 0) std::memcpy(output + offsets(received)[me], input + offsets(sent)[me], sent[me]);
  co_return co_await work(team.group, [&] {
    if (incoming.read() || outgoing.write()) return Step::kWorked;
    return outgoing.finished() && incoming.finished() ? Step::kDone : Step::kStuck;
  });
}

Task host_reducescatter(Team& team, const uint8_t* input, uint8_t* output, std::span<const size_t> counts,
                        hvd_dtype dtype, hvd_reduction reduction, int32_t divisor) {
  const size_t element = dtype_size(dtype);
  const auto members = static_cast<size_t>(team.size());
  const auto me = static_cast<size_t>(team.me);
  std::vector<size_t> sizes(counts.begin(), counts.end());
  for (size_t& size : sizes) size *= element;
  const size_t block = block_bytes(*std::max_element(sizes.begin(), sizes.end())) / element * element;
  const uint8_t* const own = input + offsets(sizes)[me];
  const Blocks blocks{sizes[me], block};
  Personal outgoing(team, input, sizes, block);
  std::vector<std::optional<Found>> found(members);
  std::vector<const void*> inputs(members);
  size_t reduced = 0;
  const auto reduce = [&] {
    if (reduced == blocks.count()) return false;
    const uint64_t number = reduced * members + me;
    for (size_t p = 0; p < members; ++p) {
      if (p == me || found[p].has_value()) continue;
      found[p] = find(team, team.members[p], number);
      if (!found[p].has_value()) return false;
    }
    for (size_t p = 0; p < members; ++p) {
      inputs[p] = p == me ? own + blocks.first(reduced) : found[p]->data;
    }
    reduce_many(dtype, reduction, output + blocks.first(reduced), inputs.data(), members,
                blocks.length(reduced) / element, divisor);
    for (size_t p = 0; p < members; ++p) {
      if (p == me) continue;
      release(team, team.members[p], *found[p], number);
      found[p].reset();
    }
    ++reduced;
    return true;
  };
  co_return co_await work(team.group, [&] {
    if (reduce() || outgoing.write()) return Step::kWorked;
    return reduced == blocks.count() && outgoing.finished() ? Step::kDone : Step::kStuck;
  });
}

// Many: each tells the first, which tells all.
static Task barrier_of_many(Team& team) {
  HostGroup& group = team.group;
  const size_t segment = team.segment(0);
  const int32_t first = team.member(0);
  std::optional<Found> found;
  if (Status status = co_await await_release(group, segment); !status.ok()) co_return status;
  if (team.me != 0) {
    group.put(segment, team.stamp(0), {&first, 1});
    if (Status status = co_await await_block(team, first, 0, found); !status.ok()) co_return status;
    release(team, first, *found, 0);
    co_return Status();
  }
  for (const int32_t other : team.others) {
    if (Status status = co_await await_block(team, other, 0, found); !status.ok()) co_return status;
    release(team, other, *found, 0);
  }
  group.put(segment, team.stamp(0), team.others);
  co_return Status();
}

Task host_barrier(Team& team) {
  if (team.size() > kMostAmongAll) co_return co_await barrier_of_many(team);
  HostGroup& group = team.group;
  const size_t segment = team.segment(0);
  if (Status status = co_await await_release(group, segment); !status.ok()) co_return status;
  group.put(segment, team.stamp(0), team.others);
  for (const int32_t other : team.others) {
    std::optional<Found> found;
    if (Status status = co_await await_block(team, other, 0, found); !status.ok()) co_return status;
    release(team, other, *found, 0);
  }
  co_return Status();
}

}  // namespace hvd::local

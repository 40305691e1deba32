// Allreduce on one host. Block k belongs to member k mod n. All others copy theirs of it into their ring; its
// owner reduces straight from the rings and its own input, and puts the result into its ring for all to
// copy. A rank does whatever is possible at the moment and runs ahead as far as its segments allow, so
// that ranks which share a processor seldom have to hand it over.
#include <algorithm>

#include "base/two_ways.h"
#include "local/host_collectives.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvd::local {
namespace {

constexpr size_t kOneRound = size_t{8} << 10;    // up to it everybody reduces everything
constexpr size_t kLeastBlock = size_t{4} << 10;  // bytes
constexpr size_t kPiece = size_t{16} << 10;      // of a block: stays in a core's first cache

// All rings together should fit into the caches until everybody has taken their blocks, the more so as
// members share cores. A ring that holds no block of every member's makes them wait for each other at each.
size_t largest_block(size_t members) {
  if (members <= 2) return size_t{128} << 10;
  if (members <= 4) return size_t{32} << 10;
  return members <= kSegments ? size_t{16} << 10 : size_t{64} << 10;
}

// Whether pages of the inputs side by side or one after the other: from memory, and from caches.
TwoWays from_memory, from_caches;

class Allreduce {
 public:
  Allreduce(Team& team, const Tensors& tensors, hvd_dtype dtype, hvd_reduction reduction, int32_t divisor)
      : team_(team), tensors_(tensors), dtype_(dtype), reduction_(reduction), divisor_(divisor) {
    const size_t members = static_cast<size_t>(team.size());
    blocks_.total = tensors.count();
    one_round_ = tensors.bytes() <= kOneRound && team.size() <= kMostAmongAll;
    if (one_round_) {
      blocks_.each = std::max<size_t>(1, tensors.count());
    } else {
      const size_t share = (tensors.bytes() / members + kLine) / kLine * kLine;
      blocks_.each = std::clamp(share, kLeastBlock, largest_block(members)) / tensors.element();
    }
    count_ = blocks_.count();
    const bool much = streams(team, tensors.bytes());
    ways_ = much ? &from_memory : &from_caches;
    fetches_ = members > 2 && much;  // of two, memcpy is the faster one here
    reduced_ = static_cast<size_t>(team.me);
    contributed_ = team.me == 0 ? 1 : 0;
    copied_.resize(members);
    for (size_t member = 0; member < members; ++member) copied_[member] = member;
    found_.resize(members);
    inputs_.resize(members);
  }

  Task run() {
    if (one_round_) return run_one_round();
    return work(team_.group, [this] {
      // Reducing first frees most segments; contributing last runs ahead.
      if (reduce() || copy() || contribute()) return Step::kWorked;
      return finished() ? Step::kDone : Step::kStuck;
    });
  }

 private:
  size_t members() const { return static_cast<size_t>(team_.size()); }
  bool finished() const {
    if (reduced_ < count_ || contributed_ < count_) return false;
    for (size_t member = 0; member < members(); ++member) {
      if (static_cast<int32_t>(member) != team_.me && copied_[member] < count_) return false;
    }
    return true;
  }

  // Segments are used in the order of blocks, for the last one of which nobody has to wait then.
  bool writable(size_t block) {
    if (block >= kSegments) {
      const size_t before = block - kSegments;
      if (before % members() == static_cast<size_t>(team_.me) ? reduced_ <= before : contributed_ <= before) {
        return false;
      }
    }
    return team_.group.released(team_.segment(block));
  }

  bool contribute() {
    const size_t block = contributed_;
    if (block >= count_ || !writable(block)) return false;
    const size_t segment = team_.segment(block);
    tensors_.gather(blocks_.first(block), blocks_.length(block), team_.group.segment(segment), fetches_);
    const int32_t owner = team_.members[block % members()];
    team_.group.put(segment, team_.stamp(block), {&owner, 1});
    ++contributed_;
    if (contributed_ % members() == static_cast<size_t>(team_.me)) ++contributed_;
    return true;
  }

  // Whether the others' contributions to a block are there.
  bool collect(size_t block) {
    for (size_t member = 0; member < members(); ++member) {
      if (static_cast<int32_t>(member) == team_.me || found_[member].has_value()) continue;
      found_[member] = in_order(team_, team_.members[member], block);
      if (!found_[member].has_value()) return false;
    }
    return true;
  }

  // n elements from `first` on of a block that begins at `start`. to: where the block's result goes; NULL:
  // straight to the outputs.
  void reduce_some(size_t start, size_t first, size_t n, uint8_t* to, bool by_pages) {
    const size_t element = tensors_.element();
    tensors_.visit(start + first, n, [&](const uint8_t* input, uint8_t* output, size_t offset, size_t count) {
      const size_t at = (first + offset) * element;
      for (size_t member = 0; member < members(); ++member)
        inputs_[member] = static_cast<int32_t>(member) == team_.me ? input : found_[member]->data + at;
      reduce_many(dtype_, reduction_, to == nullptr ? output : to + at, inputs_.data(), inputs_.size(), count,
                  divisor_, by_pages);
    });
  }

  void release_found(size_t block) {
    for (size_t member = 0; member < members(); ++member) {
      if (static_cast<int32_t>(member) == team_.me) continue;
      release(team_, team_.members[member], *found_[member], block);
      found_[member].reset();
    }
  }

  bool reduce() {
    const size_t block = reduced_;
    if (block >= count_ || !writable(block) || !collect(block)) return false;
    const size_t segment = team_.segment(block);
    uint8_t* const result = team_.group.segment(segment);
    const size_t start = blocks_.first(block), length = blocks_.length(block);
    const size_t piece = kPiece / tensors_.element();
    for (size_t first = 0; first < length; first += piece) {
      const size_t n = std::min(piece, length - first);
      ways_->run(n * tensors_.element(), [&](size_t way) { reduce_some(start, first, n, result, way == 0); });
      tensors_.scatter(start + first, n, result + first * tensors_.element());
    }
    team_.group.put(segment, team_.stamp(block), team_.others);
    release_found(block);
    reduced_ += members();
    return true;
  }

  bool copy() {
    for (size_t i = 1; i < members(); ++i) {
      const size_t member = (static_cast<size_t>(team_.me) + i) % members();
      const size_t block = copied_[member];
      if (block >= count_) continue;
      const std::optional<Found> found = in_order(team_, team_.members[member], block);
      if (!found.has_value()) continue;
      tensors_.scatter(blocks_.first(block), blocks_.length(block), found->data);
      release(team_, team_.members[member], *found, block);
      copied_[member] += members();
      return true;
    }
    return false;
  }

  Task run_one_round() {
    if (count_ == 0) co_return Status();
    HostGroup& group = team_.group;
    const size_t segment = team_.segment(0);
    if (Status status = co_await await_release(group, segment); !status.ok()) co_return status;
    tensors_.gather(0, tensors_.count(), group.segment(segment));
    group.put(segment, team_.stamp(0), team_.others);
    if (Status status = co_await group.wait([this] { return collect(0); }); !status.ok()) co_return status;
    reduce_some(0, 0, tensors_.count(), nullptr, false);
    release_found(0);
    co_return Status();
  }

  Team& team_;
  const Tensors& tensors_;
  const hvd_dtype dtype_;
  const hvd_reduction reduction_;
  const int32_t divisor_;
  bool one_round_ = false;
  TwoWays* ways_ = nullptr;
  bool fetches_ = false;  // what is contributed comes from memory
  Blocks blocks_;
  size_t count_ = 0;
  size_t contributed_ = 0;      // next block of another's that this rank has not put into its ring
  size_t reduced_ = 0;          // next block of its own that it has not reduced
  std::vector<size_t> copied_;  // next block of each member's that it has not copied
  std::vector<std::optional<Found>> found_;
  std::vector<const void*> inputs_;
};

}  // namespace

Task host_allreduce(Team& team, const Tensors& tensors, hvd_dtype dtype, hvd_reduction reduction,
                    int32_t divisor) {
  Allreduce allreduce(team, tensors, dtype, reduction, divisor);
  co_return co_await allreduce.run();
}

}  // namespace hvd::local

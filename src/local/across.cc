// Runs operations of several hosts: pieces overlap within and between hosts.
#include "local/across.h"

#include <algorithm>

#include "local/host_collectives.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvd::local {
namespace {

constexpr size_t kLeastChunk = size_t{512} << 10;
constexpr size_t kMostChunk = size_t{4} << 20;

/// How an array is cut: blocks for the rings, chunks of several blocks between hosts. From its size alone,
/// since all hosts must cut alike.
struct Plan {
  Plan(size_t count, size_t element) {
    const size_t bytes = count * element;
    const size_t chunk_bytes = std::clamp(bytes / 8, kLeastChunk, kMostChunk);
    const size_t block_bytes = std::clamp(std::min(bytes, chunk_bytes) / 8, size_t{16} << 10, kSegmentBytes);
    blocks = {count, std::max<size_t>(1, block_bytes / element)};
    per_chunk = std::max<size_t>(1, chunk_bytes / element / blocks.each);
    chunks = {count, per_chunk * blocks.each};
  }
  size_t chunk_of(size_t block) const { return block / per_chunk; }

  Blocks blocks, chunks;
  size_t per_chunk = 1;  // blocks
};

/// The operations that the leader has under way between the hosts, which end in any order and are used in
/// theirs.
class Flight {
 public:
  explicit Flight(InnerOps& inner) : inner_(inner) {}

  Status submit(hvd_backend_op op, std::span<const int32_t> leaders, std::span<const backend::Part> parts) {
    op.ranks = leaders.data();
    op.rank_count = static_cast<int32_t>(leaders.size());
    op.counts = nullptr;
    op.input = parts[0].input;
    op.output = parts[0].output;
    op.count = parts[0].count;
    InnerOps::Ticket* ticket = nullptr;
    Status status = inner_.submit(op, parts, tickets_.size(), &ticket);
    if (status.ok()) tickets_.push_back(ticket);
    return status;
  }

  size_t submitted() const { return tickets_.size(); }
  size_t landed() const { return landed_; }
  bool ready() const { return landed_ < tickets_.size() && tickets_[landed_]->finished(); }
  const Status& land() { return tickets_[landed_++]->outcome(); }

 private:
  InnerOps& inner_;
  std::vector<InnerOps::Ticket*> tickets_;
  size_t landed_ = 0;
};

/// Blocks of the tensors' outputs that a leader passes on within its host.
class Downward {
 public:
  Downward(Team& team, const Tensors& tensors, const Blocks& blocks)
      : team_(team), tensors_(tensors), blocks_(blocks), count_(team.size() > 1 ? blocks.count() : 0) {}

  /// until: blocks that may be passed on.
  bool put(size_t until) {
    if (next_ >= std::min(until, count_)) return false;
    const size_t segment = team_.segment(next_);
    if (!team_.group.released(segment)) return false;
    uint8_t* const to = team_.group.segment(segment);
    const size_t element = tensors_.element();
    tensors_.visit(blocks_.first(next_), blocks_.length(next_),
                   [&](const uint8_t*, const uint8_t* output, size_t offset, size_t n) {
                     std::memcpy(to + offset * element, output, n * element);
                   });
    team_.group.put(segment, team_.stamp(next_), team_.others);
    ++next_;
    return true;
  }
  /// The other end.
  bool take(int32_t leader) {
    if (next_ >= count_) return false;
    const std::optional<Found> found = find(team_, leader, next_);
    if (!found.has_value()) return false;
    tensors_.scatter(blocks_.first(next_), blocks_.length(next_), found->data);
    release(team_, leader, *found, next_);
    ++next_;
    return true;
  }
  bool finished() const { return next_ >= count_; }

 private:
  Team& team_;
  const Tensors& tensors_;
  const Blocks& blocks_;
  const size_t count_;
  size_t next_ = 0;
};

Task follow_broadcast(Span& span, const Tensors& tensors, const Plan& plan) {
  Downward downward(span.team, tensors, plan.blocks);
  const int32_t leader = span.team.member(span.leader);
  co_return co_await work(span.team.group, [&] {
    if (downward.take(leader)) return Step::kWorked;
    return downward.finished() ? Step::kDone : Step::kStuck;
  });
}

/// What the leader of an allreduce does with its host's blocks: reduces them into its outputs.
class Upward {
 public:
  Upward(Team& team, const Tensors& tensors, const Blocks& blocks, hvd_dtype dtype, hvd_reduction reduction,
         int32_t divisor)
      : team_(team),
        tensors_(tensors),
        blocks_(blocks),
        dtype_(dtype),
        reduction_(reduction),
        divisor_(divisor),
        count_(blocks.count()),
        found_(team.members.size()),
        inputs_(team.members.size()) {}

  size_t reduced() const { return next_; }

  bool reduce() {
    if (next_ >= count_) return false;
    const auto me = static_cast<size_t>(team_.me);
    for (size_t p = 0; p < found_.size(); ++p) {
      if (p == me || found_[p].has_value()) continue;
      found_[p] = find(team_, team_.members[p], next_);
      if (!found_[p].has_value()) return false;
    }
    const size_t element = tensors_.element();
    tensors_.visit(blocks_.first(next_), blocks_.length(next_),
                   [&](const uint8_t* input, uint8_t* output, size_t offset, size_t n) {
                     for (size_t p = 0; p < inputs_.size(); ++p) {
                       inputs_[p] = p == me ? input : found_[p]->data + offset * element;
                     }
                     reduce_many(dtype_, reduction_, output, inputs_.data(), inputs_.size(), n, divisor_);
                   });
    for (size_t p = 0; p < found_.size(); ++p) {
      if (p == me) continue;
      release(team_, team_.members[p], *found_[p], next_);
      found_[p].reset();
    }
    ++next_;
    return true;
  }

  /// The other end: this rank's inputs.
  bool put(int32_t leader) {
    if (next_ >= count_) return false;
    const size_t segment = team_.segment(next_);
    if (!team_.group.released(segment)) return false;
    tensors_.gather(blocks_.first(next_), blocks_.length(next_), team_.group.segment(segment));
    team_.group.put(segment, team_.stamp(next_), {&leader, 1});
    ++next_;
    return true;
  }
  bool finished() const { return next_ >= count_; }

 private:
  Team& team_;
  const Tensors& tensors_;
  const Blocks& blocks_;
  const hvd_dtype dtype_;
  const hvd_reduction reduction_;
  const int32_t divisor_;
  const size_t count_;
  size_t next_ = 0;
  std::vector<std::optional<Found>> found_;
  std::vector<const void*> inputs_;
};

}  // namespace

Task broadcast_across(Span& span, const hvd_backend_op& op, const Tensors& tensors) {
  const Plan plan(tensors.count(), tensors.element());
  if (!span.leads()) co_return co_await follow_broadcast(span, tensors, plan);
  Flight flight(span.inner);
  for (size_t chunk = 0; chunk < plan.chunks.count(); ++chunk) {
    const std::vector<backend::Part> parts =
        tensors.parts(plan.chunks.first(chunk), plan.chunks.length(chunk), true);
    if (Status status = flight.submit(op, span.leaders, parts); !status.ok()) co_return status;
  }
  const bool is_root = span.team.group.rank(span.team.member(span.team.me)) == op.root;
  Downward downward(span.team, tensors, plan.blocks);
  Status failure;
  Status status = co_await work(span.team.group, [&] {
    if (flight.ready()) {
      failure = flight.land();
      return failure.ok() ? Step::kWorked : Step::kDone;
    }
    if (downward.put(is_root ? plan.blocks.count() : flight.landed() * plan.per_chunk)) return Step::kWorked;
    return downward.finished() && flight.landed() == flight.submitted() ? Step::kDone : Step::kStuck;
  });
  co_return status.ok() ? failure : status;
}

Task allreduce_across(Span& span, const hvd_backend_op& op, const Tensors& tensors, int32_t participants) {
  const Plan plan(tensors.count(), tensors.element());
  const bool average = op.reduction == HVD_REDUCTION_AVERAGE;
  // The sum of all ranks may be more than a narrow float holds: each host's is divided as long as it is wide.
  const bool early = average && is_narrow_float(op.dtype);
  Upward upward(span.team, tensors, plan.blocks, op.dtype,
                average && !early ? hvd_reduction{HVD_REDUCTION_SUM} : op.reduction, participants);
  Downward downward(span.team, tensors, plan.blocks);
  if (!span.leads()) {
    const int32_t leader = span.team.member(span.leader);
    co_return co_await work(span.team.group, [&] {
      if (downward.take(leader) || upward.put(leader)) return Step::kWorked;
      return upward.finished() && downward.finished() ? Step::kDone : Step::kStuck;
    });
  }
  // A leader that is alone on its host has nothing to reduce first.
  const bool alone = span.team.size() == 1 && !early;
  hvd_backend_op between = op;
  if (average) between.reduction = HVD_REDUCTION_SUM;
  Flight flight(span.inner);
  const size_t chunks = plan.chunks.count();
  Status failure;
  const auto land = [&] {
    const size_t chunk = flight.landed();
    failure = flight.land();
    if (failure.ok() && average && !early) {
      tensors.visit(plan.chunks.first(chunk), plan.chunks.length(chunk),
                    [&](const uint8_t*, uint8_t* output, size_t, size_t n) {
                      divide(op.dtype, output, n, participants);
                    });
    }
    return failure.ok();
  };
  const auto submit = [&] {
    const size_t chunk = flight.submitted();
    const size_t first = plan.chunks.first(chunk);
    const std::vector<backend::Part> parts = tensors.parts(first, plan.chunks.length(chunk), !alone);
    failure = flight.submit(between, span.leaders, parts);
    return failure.ok();
  };
  Status status = co_await work(span.team.group, [&] {
    if (flight.ready()) return land() ? Step::kWorked : Step::kDone;
    if (flight.submitted() < chunks) {
      const size_t reduced = alone ? tensors.count() : upward.reduced() * plan.blocks.each;
      const size_t end = plan.chunks.first(flight.submitted()) + plan.chunks.length(flight.submitted());
      if (reduced >= end) return submit() ? Step::kWorked : Step::kDone;
    }
    // The other hosts wait for what this one reduces, its own ranks for what comes back.
    if (!alone && upward.reduce()) return Step::kWorked;
    if (downward.put(flight.landed() * plan.per_chunk)) return Step::kWorked;
    return flight.landed() == chunks && downward.finished() ? Step::kDone : Step::kStuck;
  });
  co_return status.ok() ? failure : status;
}

Task allgather_across(Span& span, const hvd_backend_op& op, std::span<const size_t> counts, size_t first,
                      std::span<const size_t> host_counts) {
  const size_t element = dtype_size(op.dtype);
  Team& team = span.team;
  auto* const output = static_cast<uint8_t*>(op.output);
  std::vector<size_t> sizes;
  for (int32_t p = 0; p < team.size(); ++p) sizes.push_back(counts[first + static_cast<size_t>(p)] * element);
  size_t before = 0, total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (i < first) before += counts[i];
    total += counts[i];
  }
  uint8_t* const here = output + before * element;
  // The host's own parts go to all its ranks; the leader then gets those of other hosts and passes them on.
  if (Status status = co_await host_allgather(team, static_cast<const uint8_t*>(op.input), here, sizes);
      !status.ok()) {
    co_return status;
  }
  team.phase = 1;
  size_t own = 0;
  for (size_t size : sizes) own += size / element;
  const backend::Part rest[2] = {{output, output, before},
                                 {here + own * element, here + own * element, total - before - own}};
  if (span.leads()) {
    hvd_backend_op between = op;
    between.input = here;
    between.count = own;
    between.counts = host_counts.data();
    between.ranks = span.leaders.data();
    between.rank_count = static_cast<int32_t>(span.leaders.size());
    InnerOps::Ticket* ticket = nullptr;
    if (Status status = span.inner.submit(between, {}, 0, &ticket); !status.ok()) co_return status;
    if (Status status = co_await span.inner.wait(*ticket); !status.ok()) co_return status;
  }
  co_return co_await host_broadcast(team, Tensors(rest, element), span.leader);
}

}  // namespace hvd::local

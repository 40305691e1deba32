// Reductions in which every rank owns a part of the array: it gets all inputs of its part, and nobody passes
// on what is half done. One round of the network whatever the number of ranks, the inputs' own width on the
// wire, and each element is the sum in the order of ranks.
#include <algorithm>
#include <cstring>
#include <memory>

#include "modules/kit/reduction.h"
#include "numeric/reduce.h"

namespace hvdkit {
namespace {

constexpr size_t kSlots = 4;                        // segments of the own part that are received at a time
constexpr size_t kScratch = size_t{4} << 20;        // bytes of them, if segments don't get tiny by that
constexpr size_t kLeastSegment = size_t{32} << 10;  // bytes

class Direct {
 public:
  Direct(Party& party, const Work& work, const void* input, const std::vector<size_t>& counts)
      : party_(party), work_(work), input_(static_cast<const char*>(input)), counts_(counts) {
    for (const size_t count : counts) {
      firsts_.push_back(total_);
      total_ += count;
    }
    // The same on all ranks.
    const size_t largest = *std::max_element(counts.begin(), counts.end()) * work.element;
    const size_t peers = static_cast<size_t>(party.size()) - 1;
    const size_t overlap = std::max(largest / 4, kLeastSegment);
    const size_t room = std::max(kScratch / (kSlots * peers), kLeastSegment);
    segment_ = std::max<size_t>(1, std::min({party.segment_bytes, overlap, room, largest}) / work.element);
  }

  /// output: this rank's part; with `whole` the array of all parts, and every rank gets all of them.
  void run(void* output, bool whole) {
    const size_t element = work_.element;
    const size_t own = counts_[me()];
    const size_t own_segments = segments(me());
    const size_t unit = std::min(segment_, own) * element;
    const size_t peers = peers_in_order().size();
    const std::vector<size_t> order = peers_in_order();

    const size_t slots = std::min(kSlots, own_segments);
    const std::unique_ptr<char[]> scratch(new char[std::max<size_t>(1, slots * peers * unit)]);
    std::vector<std::unique_ptr<Region>>
        parts;  // of others, a region per slot: its waits are for this segment
    for (size_t slot = 0; slot < slots; ++slot) {
      parts.push_back(party_.transport.region(scratch.get() + slot * peers * unit, peers * unit));
    }
    const std::unique_ptr<Region> source =
        party_.transport.region(const_cast<char*>(input_), total_ * element);
    char* const own_output = static_cast<char*>(output) + (whole ? firsts_[me()] * element : 0);
    const std::unique_ptr<Region> result = party_.transport.region(output, (whole ? total_ : own) * element);

    const auto receive = [&](size_t segment) {
      for (size_t i = 0; i < order.size(); ++i) {
        parts[segment % slots]->receive(rank(order[i]), party_.slot, i * unit,
                                        length(me(), segment) * element);
      }
    };
    for (size_t segment = 0; segment < slots; ++segment) receive(segment);
    // Everything that is sent waits for its receiver: there is nothing to hold back, and nobody waits in a
    // circle.
    size_t sends = 0;
    size_t results = 0;
    for (size_t segment = 0, any = 1; any > 0; ++segment) {
      any = 0;
      for (const size_t owner : order) {
        if (segment >= segments(owner)) continue;
        const size_t at = (firsts_[owner] + segment * segment_) * element;
        const size_t bytes = length(owner, segment) * element;
        source->send(rank(owner), party_.slot, at, bytes);
        ++any;
      }
      sends += any;
    }
    for (size_t segment = 0, any = 1; whole && any > 0; ++segment) {
      any = 0;
      for (const size_t owner : order) {
        if (segment >= segments(owner)) continue;
        const size_t at = (firsts_[owner] + segment * segment_) * element;
        result->receive(rank(owner), party_.slot + 1, at, length(owner, segment) * element);
        ++any;
      }
      results += any;
    }

    std::vector<const void*> inputs(order.size() + 1);
    for (size_t segment = 0; segment < own_segments; ++segment) {
      const size_t slot = segment % slots;
      const size_t begin = segment * segment_ * element;
      for (size_t i = 0; i < order.size(); ++i) {
        parts[slot]->wait_received(-1);
        inputs[order[i]] = scratch.get() + (slot * peers + i) * unit;
      }
      inputs[me()] = input_ + firsts_[me()] * element + begin;
      hvd::reduce_many(work_.dtype, work_.reduction, own_output + begin, inputs.data(), inputs.size(),
                       length(me(), segment), party_.size());
      if (whole) {
        for (const size_t peer : order) {
          result->send(rank(peer), party_.slot + 1, firsts_[me()] * element + begin,
                       length(me(), segment) * element);
        }
      }
      if (segment + slots < own_segments) receive(segment + slots);
    }
    for (; results > 0; --results) result->wait_received(-1);
    for (; sends > 0; --sends) source->wait_sent(-1);
    for (size_t i = 0; whole && i < own_segments * order.size(); ++i) result->wait_sent(-1);
  }

 private:
  size_t me() const { return static_cast<size_t>(party_.me); }
  int rank(size_t index) const { return party_.rank(static_cast<int>(index)); }
  size_t segments(size_t owner) const { return (counts_[owner] + segment_ - 1) / segment_; }
  size_t length(size_t owner, size_t segment) const {
    return std::min(segment_, counts_[owner] - segment * segment_);
  }
  /// All but this rank, starting after it: so that not everybody talks to the same one first.
  std::vector<size_t> peers_in_order() const {
    std::vector<size_t> order;
    for (size_t i = 1; i < counts_.size(); ++i) order.push_back((me() + i) % counts_.size());
    return order;
  }

  Party& party_;
  const Work work_;
  const char* const input_;
  const std::vector<size_t>& counts_;
  std::vector<size_t> firsts_;
  size_t total_ = 0;
  size_t segment_ = 0;  // elements
};

}  // namespace

void allreduce_direct(Party& party, const Work& work, const void* input, void* output) {
  const auto n = static_cast<size_t>(party.size());
  std::vector<size_t> counts(n, work.count / n);
  for (size_t i = 0; i < work.count % n; ++i) ++counts[i];
  Direct(party, work, input, counts).run(output, true);
}

void reducescatter(Party& party, hvd_dtype dtype, hvd_reduction reduction, const void* input, void* output,
                   const std::vector<size_t>& counts) {
  const Work work = Work::of(dtype, reduction, 0);
  if (*std::max_element(counts.begin(), counts.end()) == 0) return;
  if (party.size() == 1) {
    if (output != input) std::memcpy(output, input, counts[0] * work.element);
    return;
  }
  Direct(party, work, input, counts).run(output, false);
}

}  // namespace hvdkit

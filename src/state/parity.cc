// Groups, blocks, and the plan of repairs: intersections of what is lost with the chunks that blocks are sums
// of.
#include "state/parity.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

namespace hvd::state {
namespace {

/// A range within a stripe or a part of it, and where it begins there.
struct Laid {
  ShardRange range;
  uint64_t at = 0;
};

std::vector<Laid> lay(const std::vector<ShardRange>& stripe, const std::vector<uint64_t>& element_bytes) {
  std::vector<Laid> all;
  uint64_t at = 0;
  for (const ShardRange& range : stripe) {
    all.push_back({range, at});
    at += whole_lines(static_cast<uint64_t>(range.elements()) * element_bytes[range.key]);
  }
  return all;
}

/// What of a stripe lies in bytes [begin, end) of it, both at lines; `at` from `begin` on.
std::vector<Laid> cut(const std::vector<Laid>& stripe, uint64_t begin, uint64_t end,
                      const std::vector<uint64_t>& element_bytes) {
  std::vector<Laid> parts;
  for (const Laid& laid : stripe) {
    const uint64_t element = element_bytes[laid.range.key];
    const uint64_t from = std::max(begin, laid.at);
    const uint64_t to = std::min(end, laid.at + static_cast<uint64_t>(laid.range.elements()) * element);
    if (from >= to) continue;
    const auto first = laid.range.begin + static_cast<int64_t>((from - laid.at) / element);
    const auto last = laid.range.begin + static_cast<int64_t>((to - laid.at) / element);
    parts.push_back({{laid.range.key, first, last}, from - begin});
  }
  return parts;
}

/// Who has which range of each key, and sources of whole ranges.
class Having {
 public:
  Having(const std::vector<std::vector<ShardRange>>& has, size_t keys) : by_key_(keys), load_(has.size(), 0) {
    for (size_t rank = 0; rank < has.size(); ++rank) {
      for (const ShardRange& range : has[rank]) {
        if (range.begin < range.end)
          by_key_[range.key].push_back({range.begin, range.end, static_cast<int32_t>(rank)});
      }
    }
  }

  /// Appends inputs that make up `range`: each from the holder itself if that has it, else from the rank with
  /// the least to send so far. False: nobody has a part of it.
  bool sources(const ShardRange& range, int32_t holder, uint64_t offset, uint64_t element,
               std::vector<ParityInput>* inputs) const {
    for (int64_t at = range.begin; at < range.end;) {
      const Part* best = nullptr;
      const auto rating = [&](const Part& part) {
        return std::tuple(part.rank != holder, load_[static_cast<size_t>(part.rank)], part.rank, -part.end);
      };
      for (const Part& part : by_key_[range.key]) {
        if (part.begin > at || part.end <= at) continue;
        if (best == nullptr || rating(part) < rating(*best)) best = &part;
      }
      if (best == nullptr) return false;
      const int64_t end = std::min(range.end, best->end);
      inputs->push_back(
          {{range.key, at, end}, best->rank, offset + static_cast<uint64_t>(at - range.begin) * element});
      at = end;
    }
    return true;
  }

  void take(const ParityRepair& repair, const std::vector<uint64_t>& element_bytes) {
    for (const ParityInput& input : repair.inputs) {
      if (input.source != repair.holder)
        load_[static_cast<size_t>(input.source)] +=
            static_cast<uint64_t>(input.range.elements()) * element_bytes[input.range.key];
    }
  }

 private:
  struct Part {
    int64_t begin, end;
    int32_t rank;
  };
  std::vector<std::vector<Part>> by_key_;
  std::vector<uint64_t> load_;
};

/// Takes `part` out of `range`, which has it: what is left of that.
std::vector<ShardRange> without(const ShardRange& range, const ShardRange& part) {
  std::vector<ShardRange> rest;
  if (range.begin < part.begin) rest.push_back({range.key, range.begin, part.begin});
  if (part.end < range.end) rest.push_back({range.key, part.end, range.end});
  return rest;
}

}  // namespace

std::vector<std::vector<int32_t>> parity_groups(const std::vector<std::string>& hosts, int32_t parity) {
  std::vector<int32_t> ranks(hosts.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::sort(ranks.begin(), ranks.end(), [&](int32_t a, int32_t b) {
    return std::tie(hosts[static_cast<size_t>(a)], a) < std::tie(hosts[static_cast<size_t>(b)], b);
  });
  const size_t count = std::max<size_t>(hosts.size() / (static_cast<size_t>(parity) + 1), 1);
  std::vector<std::vector<int32_t>> groups(count);
  // Dealt out host by host, the ranks of one host come to lie as far apart as they can.
  for (size_t i = 0; i < ranks.size(); ++i) groups[i % count].push_back(ranks[i]);
  for (std::vector<int32_t>& group : groups) std::sort(group.begin(), group.end());
  return groups;
}

uint64_t stripe_bytes(const std::vector<ShardRange>& stripe, const std::vector<uint64_t>& element_bytes) {
  uint64_t bytes = 0;
  for (const ShardRange& range : stripe)
    bytes += whole_lines(static_cast<uint64_t>(range.elements()) * element_bytes[range.key]);
  return bytes;
}

ParityBlock parity_block(std::vector<std::vector<ShardRange>> members, uint64_t slot,
                         const std::vector<uint64_t>& element_bytes) {
  uint64_t longest = 0;
  for (const auto& stripe : members) longest = std::max(longest, stripe_bytes(stripe, element_bytes));
  const uint64_t chunks = members.size() - 1;
  return {slot, whole_lines((longest + chunks - 1) / chunks), std::move(members)};
}

Digest identity(const ParityBlock& block) {
  std::vector<int64_t> words = {static_cast<int64_t>(block.slot), static_cast<int64_t>(block.members.size())};
  for (const auto& stripe : block.members) {
    for (const ShardRange& range : stripe)
      words.insert(words.end(), {int64_t{range.key}, range.begin, range.end});
  }
  return digest(words.data(), words.size() * sizeof(int64_t));
}

ParityPlan plan_repairs(const std::vector<std::vector<ShardRange>>& has,
                        const std::vector<std::vector<ParityBlock>>& blocks,
                        const std::vector<ShardRange>& lost, const std::vector<uint64_t>& element_bytes) {
  ParityPlan plan;
  plan.left = lost;
  Having having(has, element_bytes.size());
  /// What of `range` the block makes again, as the part of chunk `target` of `member` that begins at `at`.
  const auto repair = [&](int32_t holder, size_t number, size_t member, const Laid& target,
                          const ShardRange& range) -> std::optional<ParityRepair> {
    const ParityBlock& block = blocks[static_cast<size_t>(holder)][number];
    const uint64_t element = element_bytes[range.key];
    const uint64_t begin = target.at + static_cast<uint64_t>(range.begin - target.range.begin) * element;
    const uint64_t end = begin + static_cast<uint64_t>(range.elements()) * element;
    ParityRepair made;
    made.holder = holder;
    made.block = number;
    made.at = begin / kLine * kLine;  // elements of other sizes lie beside it: whole lines have them whole
    made.bytes = whole_lines(end) - made.at;
    made.skip = begin - made.at;
    made.range = range;
    for (size_t other = 0; other < block.members.size(); ++other) {
      if (other == member || other == block.slot) continue;
      const uint64_t from = block.chunk * chunk_of(other, block.slot) + made.at;
      for (const Laid& part :
           cut(lay(block.members[other], element_bytes), from, from + made.bytes, element_bytes)) {
        if (!having.sources(part.range, holder, part.at, element_bytes[part.range.key], &made.inputs))
          return {};
      }
    }
    return made;
  };
  for (size_t holder = 0; holder < blocks.size() && !plan.left.empty(); ++holder) {
    for (size_t number = 0; number < blocks[holder].size(); ++number) {
      const ParityBlock& block = blocks[holder][number];
      for (size_t member = 0; member < block.members.size(); ++member) {
        if (member == block.slot) continue;
        const uint64_t from = block.chunk * chunk_of(member, block.slot);
        for (const Laid& target :
             cut(lay(block.members[member], element_bytes), from, from + block.chunk, element_bytes)) {
          std::vector<ShardRange> left;
          for (const ShardRange& wanted : plan.left) {
            const ShardRange range{wanted.key, std::max(wanted.begin, target.range.begin),
                                   std::min(wanted.end, target.range.end)};
            std::optional<ParityRepair> made;
            if (wanted.key == target.range.key && range.begin < range.end)
              made = repair(static_cast<int32_t>(holder), number, member, target, range);
            if (!made) {
              left.push_back(wanted);
              continue;
            }
            having.take(*made, element_bytes);
            plan.repairs.push_back(std::move(*made));
            for (const ShardRange& rest : without(wanted, range)) left.push_back(rest);
          }
          plan.left = std::move(left);
        }
      }
    }
  }
  return plan;
}

}  // namespace hvd::state

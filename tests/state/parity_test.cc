// Parity as pure functions: groups, blocks, and repairs that are carried out on bytes here.
#include "state/parity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "state/pieces.h"

namespace hvd::state {
namespace {

std::vector<std::string> hosts_of(const std::vector<int>& slots) {
  std::vector<std::string> hosts;
  for (size_t host = 0; host < slots.size(); ++host)
    hosts.insert(hosts.end(), slots[host], std::to_string(host));
  return hosts;
}

TEST(ParityGroups, HoldEachRankOnceAndKeepToTheirSize) {
  for (int32_t parity = 2; parity < 8; ++parity) {
    for (int size = 1; size < 70; ++size) {
      const auto groups = parity_groups(hosts_of({size / 3, size - size / 3}), parity);
      std::set<int32_t> seen;
      for (const auto& group : groups) {
        EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
        EXPECT_GE(std::ssize(group), std::min(size, parity + 1));
        EXPECT_LE(std::ssize(group), 2 * parity + 1);
        seen.insert(group.begin(), group.end());
      }
      EXPECT_EQ(std::ssize(seen), size) << parity;
    }
  }
}

TEST(ParityGroups, SpreadAHostOverAsManyAsThereAre) {
  for (const std::vector<int>& slots : std::vector<std::vector<int>>{
           {2, 2, 2, 2}, {4, 4, 4, 4}, {1, 3, 2, 3}, {8, 8, 8, 8}, {1, 1, 1, 1, 1, 1}, {2, 1, 1}, {4, 1}}) {
    const auto hosts = hosts_of(slots);
    const auto groups = parity_groups(hosts, 3);
    for (const auto& group : groups) {
      std::map<std::string, int> of_host;
      for (const int32_t rank : group) ++of_host[hosts[static_cast<size_t>(rank)]];
      for (const auto& [host, count] : of_host) {
        const auto slots_there = static_cast<size_t>(slots[static_cast<size_t>(std::stoi(host))]);
        EXPECT_LE(static_cast<size_t>(count), (slots_there + groups.size() - 1) / groups.size());
      }
    }
  }
}

using Bytes = std::vector<uint8_t>;

/// A vector of two keys over some ranks, with the blocks of their groups.
struct Job {
  Job(uint32_t seed, int ranks, int32_t parity) : random(seed) {
    for (const uint64_t bytes : element_bytes) {
      const auto elements = static_cast<int64_t>(random() % 900);
      Bytes& content = vectors.emplace_back(static_cast<size_t>(elements) * bytes);
      for (uint8_t& byte : content) byte = static_cast<uint8_t>(random());
      std::vector<int64_t> cuts = {0, elements};
      for (int i = 1; i < ranks; ++i) cuts.push_back(static_cast<int64_t>(random() % (elements + 1)));
      std::sort(cuts.begin(), cuts.end());
      own.resize(static_cast<size_t>(ranks));
      for (size_t rank = 0; rank < own.size(); ++rank) {
        own[rank].push_back({static_cast<uint32_t>(vectors.size() - 1), cuts[rank], cuts[rank + 1]});
      }
    }
    blocks.resize(own.size());
    groups = parity_groups(std::vector<std::string>(own.size(), "h"), parity);
    for (const auto& group : groups) {
      std::vector<std::vector<ShardRange>> members;
      for (const int32_t rank : group) members.push_back(own[static_cast<size_t>(rank)]);
      for (size_t slot = 0; slot < group.size() && group.size() > 1; ++slot) {
        blocks[static_cast<size_t>(group[slot])].push_back(parity_block(members, slot, element_bytes));
      }
    }
  }
  const uint8_t* data(const ShardRange& range) const {
    return vectors[range.key].data() + static_cast<size_t>(range.begin) * element_bytes[range.key];
  }
  size_t bytes(const ShardRange& range) const {
    return static_cast<size_t>(range.elements()) * element_bytes[range.key];
  }
  Bytes stripe(const std::vector<ShardRange>& ranges) const {
    Bytes all;
    for (const ShardRange& range : ranges) {
      const size_t at = all.size();
      all.resize(at + whole_lines(bytes(range)));
      std::copy_n(data(range), bytes(range), all.begin() + static_cast<std::ptrdiff_t>(at));
    }
    return all;
  }
  Bytes sum(const ParityBlock& block) const {
    Bytes total(block.chunk);
    for (size_t member = 0; member < block.members.size(); ++member) {
      if (member == block.slot) continue;
      Bytes mine = stripe(block.members[member]);
      mine.resize(block.chunk * (block.members.size() - 1));
      add_bytes(total.data(), mine.data() + block.chunk * chunk_of(member, block.slot), block.chunk);
    }
    return total;
  }
  Bytes carry_out(const ParityRepair& repair) const {
    const Bytes total = sum(blocks[static_cast<size_t>(repair.holder)][repair.block]);
    EXPECT_LE(repair.at + repair.bytes, total.size());
    Bytes made(total.begin() + static_cast<ptrdiff_t>(repair.at),
               total.begin() + static_cast<ptrdiff_t>(repair.at + repair.bytes));
    for (const ParityInput& input : repair.inputs) {
      EXPECT_LE(input.offset + bytes(input.range), made.size());
      add_bytes(made.data() + input.offset, data(input.range), bytes(input.range));
    }
    return {made.begin() + static_cast<ptrdiff_t>(repair.skip),
            made.begin() + static_cast<ptrdiff_t>(repair.skip + bytes(repair.range))};
  }

  std::mt19937 random;
  std::vector<uint64_t> element_bytes = {8, 1, 4};
  std::vector<Bytes> vectors;
  std::vector<std::vector<ShardRange>> own;
  std::vector<std::vector<ParityBlock>> blocks;
  std::vector<std::vector<int32_t>> groups;
};

TEST(Parity, MakesAgainWhatOneOfEachGroupHad) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const int ranks = 2 + static_cast<int>(seed % 9);
    Job job(seed, ranks, 2 + static_cast<int32_t>(seed % 3));
    auto has = job.own;
    auto blocks = job.blocks;
    std::vector<ShardRange> lost;
    for (const auto& group : job.groups) {
      const auto victim = static_cast<size_t>(group[job.random() % group.size()]);
      for (const ShardRange& range : std::exchange(has[victim], {})) {
        if (range.begin < range.end) lost.push_back(range);
      }
      blocks[victim].clear();
    }
    // Somebody else has the middle of it, from anywhere on.
    std::vector<ShardRange> parts;
    for (const ShardRange& range : lost) {
      const int64_t from = range.begin + static_cast<int64_t>(job.random() % range.elements());
      const int64_t to = from + static_cast<int64_t>(job.random() % (range.end - from));
      if (range.begin < from) parts.push_back({range.key, range.begin, from});
      parts.push_back({range.key, to, range.end});
    }
    lost = parts;
    const ParityPlan plan = plan_repairs(has, blocks, lost, job.element_bytes);
    EXPECT_TRUE(plan.left.empty());
    std::vector<std::vector<ShardRange>> made(has.size());
    for (const ParityRepair& repair : plan.repairs) {
      made[static_cast<size_t>(repair.holder)].push_back(repair.range);
      const Bytes bytes = job.carry_out(repair);
      EXPECT_EQ(std::memcmp(bytes.data(), job.data(repair.range), bytes.size()), 0);
      for (const ParityInput& input : repair.inputs) {
        const auto& there = has[static_cast<size_t>(input.source)];
        EXPECT_TRUE(std::any_of(there.begin(), there.end(), [&](const ShardRange& range) {
          return range.key == input.range.key && range.begin <= input.range.begin &&
                 input.range.end <= range.end;
        }));
      }
    }
    EXPECT_TRUE(plan_shards(made, {lost}, job.element_bytes).lost.empty());
  }
}

TEST(Parity, BlocksAreAPartOfTheLongestStripe) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    Job job(seed, 8, 3);
    for (const auto& of_rank : job.blocks) {
      for (const ParityBlock& block : of_rank) {
        uint64_t longest = 0;
        for (const auto& stripe : block.members)
          longest = std::max(longest, stripe_bytes(stripe, job.element_bytes));
        EXPECT_LE(block.chunk, longest / 3 + kLine);
      }
    }
  }
}

TEST(Parity, SaysWhatIsLeftWhenTwoOfAGroupAreLost) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Job job(seed, 4, 3);
    auto has = job.own;
    auto blocks = job.blocks;
    std::vector<ShardRange> lost;
    for (const size_t victim : {1U, 2U}) {
      for (const ShardRange& range : std::exchange(has[victim], {})) {
        if (range.begin < range.end) lost.push_back(range);
      }
      blocks[victim].clear();
    }
    const ParityPlan plan = plan_repairs(has, blocks, lost, job.element_bytes);
    // Where the other's chunk is shorter than what is lost that can be made again.
    EXPECT_EQ(plan.left.empty(), stripe_bytes(job.own[1], job.element_bytes) == 0 ||
                                     stripe_bytes(job.own[2], job.element_bytes) == 0)
        << seed;
    for (const ParityRepair& repair : plan.repairs) {
      const Bytes bytes = job.carry_out(repair);
      EXPECT_EQ(std::memcmp(bytes.data(), job.data(repair.range), bytes.size()), 0);
    }
  }
}

TEST(Parity, OfSplitsThatDifferEitherMayDo) {
  Job job(7, 4, 3);
  auto has = job.own;
  std::vector<ShardRange> lost;
  for (const ShardRange& range : std::exchange(has[3], {})) {
    if (range.begin < range.end) lost.push_back(range);
  }
  auto blocks = job.blocks;
  blocks[3].clear();
  // Rank 0 has one of another split besides, whose inputs nobody has.
  auto other = job.blocks[0][0];
  other.members[1] = job.own[3];
  blocks[0].insert(blocks[0].begin(), parity_block(other.members, 0, job.element_bytes));
  const ParityPlan plan = plan_repairs(has, blocks, lost, job.element_bytes);
  EXPECT_TRUE(plan.left.empty());
  EXPECT_NE(identity(blocks[0][0]), identity(blocks[0][1]));
}

}  // namespace
}  // namespace hvd::state

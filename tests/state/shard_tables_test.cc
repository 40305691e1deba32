// What ranks say of their shards, from ranks that lie.
#include "state/shard_tables.h"

#include <gtest/gtest.h>

#include <cstring>

namespace hvd::state {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes joined(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Bytes table(uint64_t rank, const std::vector<ShardRange>& own, const std::vector<ShardRange>& has) {
  ShardHead head;
  head.rank = rank;
  return write_shard_table(head, own, has);
}

struct Tables : ::testing::Test {
  const Bytes mine = table(0, {{0, 0, 50}, {1, 0, 5}}, {{0, 0, 100}});
  ShardTables tables;
  bool read(const Bytes& all) {
    tables = {};
    return read_shard_tables(all, 2, 2, mine, &tables);
  }
};

TEST_F(Tables, AreReadAsTheyWereWritten) {
  ASSERT_TRUE(read(joined({mine, table(1, {{0, 50, 100}, {1, 5, 10}}, {})})));
  EXPECT_EQ(tables.own[1], (std::vector<ShardRange>{{0, 50, 100}, {1, 5, 10}}));
  EXPECT_EQ(tables.has[0], (std::vector<ShardRange>{{0, 0, 100}}));
  EXPECT_TRUE(within(tables.has, {100, 10}));
}

TEST_F(Tables, AreRefusedWhenTheyAreNotWhole) {
  const Bytes all = joined({mine, table(1, {{0, 50, 100}, {1, 5, 10}}, {{1, 0, 1}})});
  for (size_t size = 0; size < all.size(); ++size)
    EXPECT_FALSE(read(Bytes(all.begin(), all.begin() + static_cast<ptrdiff_t>(size)))) << size;
  EXPECT_FALSE(read(joined({all, {0}})));
}

TEST_F(Tables, HaveOneRangeOfEachKey) {
  EXPECT_FALSE(read(joined({mine, table(1, {{1, 50, 100}, {0, 5, 10}}, {})}))) << "under another key";
  EXPECT_FALSE(read(joined({mine, table(1, {{0, 50, 100}, {0, 0, 5}}, {})}))) << "twice";
  EXPECT_FALSE(read(joined({mine, table(1, {{0, 50, 100}}, {})}))) << "not of all";
  EXPECT_FALSE(read(joined({mine, table(1, {{0, 50, 100}, {1, 5, 10}}, {{2, 0, 1}})}))) << "of none";
  EXPECT_FALSE(read(joined({table(1, {{0, 50, 100}, {1, 5, 10}}, {}), mine}))) << "in another's name";
}

TEST_F(Tables, SayOfThisRankWhatItSaid) {
  const Bytes other = table(1, {{0, 50, 100}, {1, 5, 10}}, {});
  EXPECT_FALSE(read(joined({table(0, {{0, 0, 100}, {1, 0, 5}}, {{0, 0, 100}}), other})));
  EXPECT_FALSE(read(joined({table(0, {{0, 0, 50}, {1, 0, 5}}, {}), other})));
}

TEST_F(Tables, RangesThatOverflowAreOutside) {
  constexpr int64_t kMost = INT64_MAX, kLeast = INT64_MIN;
  for (const ShardRange range : {ShardRange{0, -1, 5}, ShardRange{0, 0, 101}, ShardRange{0, 0, kMost},
                                 ShardRange{0, kLeast, kMost}, ShardRange{1, 6, 5}}) {
    EXPECT_FALSE(within({{}, {range}}, {100, 10})) << range.begin << " " << range.end;
  }
  EXPECT_NE(misfit(100, {{0, kLeast, kMost}, {0, 0, 100}}), "");
}

TEST_F(Tables, BlocksOfParityAreNamed) {
  ShardHead head;
  head.rank = 1;
  const std::vector<Digest> blocks = {{1, 2}, {3, 4}};
  const Bytes other = write_shard_table(head, {{0, 50, 100}, {1, 5, 10}}, {}, blocks);
  ASSERT_TRUE(read(joined({mine, other})));
  EXPECT_EQ(tables.blocks, (std::vector<std::vector<Digest>>{{}, blocks}));
  for (size_t cut = 1; cut <= 32; ++cut) {
    EXPECT_FALSE(read(joined({mine, Bytes(other.begin(), other.end() - static_cast<ptrdiff_t>(cut))})))
        << cut;
  }
}

struct ParityTables : ::testing::Test {
  static ParityBlock block(uint64_t slot) {
    return parity_block({{{0, 0, 50}, {1, 0, 5}}, {{0, 50, 100}, {1, 5, 10}}}, slot, {8, 4});
  }
  const Bytes mine = write_parity_table({block(0)});
  std::vector<std::vector<ParityBlock>> blocks;
  bool read(const Bytes& all) {
    blocks.clear();
    return read_parity_tables(all, 2, 0, mine, {100, 10}, {8, 4}, &blocks);
  }
};

TEST_F(ParityTables, AreReadAsTheyWereWritten) {
  ASSERT_TRUE(read(joined({mine, write_parity_table({block(1)})})));
  EXPECT_EQ(identity(blocks[1][0]), identity(block(1)));
  EXPECT_EQ(blocks[1][0].chunk, block(1).chunk);
  ASSERT_TRUE(read(joined({mine, write_parity_table({})})));
  EXPECT_TRUE(blocks[1].empty());
}

TEST_F(ParityTables, AreRefusedWhenTheyAreNotWhole) {
  const Bytes all = joined({mine, write_parity_table({block(1)})});
  for (size_t size = 0; size < all.size(); ++size)
    EXPECT_FALSE(read(Bytes(all.begin(), all.begin() + static_cast<ptrdiff_t>(size)))) << size;
  EXPECT_FALSE(read(joined({all, {0}})));
}

TEST_F(ParityTables, StayWithinTheKeysAndTheGroup) {
  const auto refused = [&](const ParityBlock& block) {
    EXPECT_FALSE(read(joined({mine, write_parity_table({block})})));
  };
  refused({2, 64, block(0).members});
  refused({0, 64, {block(0).members[0]}});
  for (const ShardRange range : {ShardRange{0, 0, 101}, ShardRange{0, -1, 5}, ShardRange{0, 6, 5},
                                 ShardRange{2, 0, 5}, ShardRange{0, INT64_MIN, INT64_MAX}}) {
    refused({0, 64, {{range}, {{1, 0, 5}}}});
  }
  EXPECT_FALSE(read(joined({write_parity_table({block(1)}), write_parity_table({block(1)})})))
      << "not what it said";
}

struct ParcelTables : ::testing::Test {
  const std::vector<std::vector<ShardRange>> has = {{{0, 0, 50}, {1, 0, 5}}, {{0, 50, 100}}};
  static PlacedParcel parcel(uint64_t process, uint64_t size, const std::vector<PlacedSegment>& segments) {
    PlacedParcel parcel;
    parcel.memory.process = process;
    parcel.memory.size = size;
    parcel.segments = segments;
    return parcel;
  }
  const Bytes mine =
      write_parcel_table({parcel(7, 460, {{has[0][0], 0, 400, {}}, {has[0][1], 448, 12, {}}})});
  std::vector<std::vector<PlacedParcel>> parcels;
  bool read(const Bytes& all) {
    parcels.clear();
    return read_parcel_tables(all, 0, mine, has, {8, 2}, &parcels);
  }
  Bytes other(uint64_t process, uint64_t size, uint64_t at) {
    return write_parcel_table({parcel(process, size, {{has[1][0], at, 400, {3, 4}}})});
  }
};

TEST_F(ParcelTables, AreReadAsTheyWereWritten) {
  ASSERT_TRUE(read(joined({mine, other(9, 500, 100)})));
  ASSERT_EQ(parcels[0][0].segments.size(), 2U);
  EXPECT_EQ(parcels[0][0].segments[1].at, 448U);
  EXPECT_EQ(parcels[0][0].segments[1].range, has[0][1]);
  const PlacedSegment& segment = parcels[1][0].segments[0];
  EXPECT_EQ(std::pair(segment.at, segment.bytes), std::pair(size_t{100}, size_t{400}));
  EXPECT_EQ(segment.digest, (Digest{3, 4}));
}

TEST_F(ParcelTables, AreRefusedWhenTheyAreNotWhole) {
  const Bytes all = joined({mine, other(9, 500, 100)});
  for (size_t size = 0; size < all.size(); ++size)
    EXPECT_FALSE(read(Bytes(all.begin(), all.begin() + static_cast<ptrdiff_t>(size)))) << size;
  EXPECT_FALSE(read(joined({all, {0}})));
}

TEST_F(ParcelTables, SegmentsLieWithinTheirParcel) {
  EXPECT_FALSE(read(joined({mine, other(9, 500, 101)})));
  EXPECT_FALSE(read(joined({mine, other(9, 399, 0)})));
  EXPECT_FALSE(read(joined({mine, other(9, 500, UINT64_MAX - 100)})));
  EXPECT_TRUE(read(joined({mine, other(0, 0, 101)}))) << "what can't be mapped is not looked at";
}

TEST_F(ParcelTables, SegmentsAreOfWhatTheRankHas) {
  EXPECT_FALSE(read(joined({mine, write_parcel_table({})}))) << "one is missing";
  const PlacedSegment one{has[1][0], 0, 400, {}};
  EXPECT_FALSE(read(joined({mine, write_parcel_table({parcel(9, 900, {one, one})})}))) << "one too many";
  EXPECT_FALSE(read(joined({other(9, 500, 0), other(9, 500, 0)}))) << "not what this rank said";
}

struct Commits : ::testing::Test {
  static Bytes part(uint64_t rank, uint64_t failure, size_t keys, uint64_t revision = 7) {
    CommitHead head;
    head.rank = rank;
    head.failure = failure;
    head.revision = revision;
    head.keys = keys;
    return write_commit_table(head, std::vector<CommitPart>(keys));
  }
  const Bytes mine = part(0, 0, 2);
  CommitTables tables;
  Status read(const Bytes& all) {
    tables = {};
    return read_commit_tables(all, 2, 0, mine, &tables);
  }
};

TEST_F(Commits, OfAllRanksAreOne) {
  EXPECT_TRUE(read(joined({mine, part(1, 0, 2)})).ok());
  EXPECT_EQ(read(mine).code, HVD_MISMATCH) << "rank 1 has joined";
  EXPECT_EQ(read(joined({mine, part(1, 0, 2, 8)})).code, HVD_MISMATCH);
  EXPECT_FALSE(tables.odd);
  EXPECT_TRUE(read(joined({mine, part(1, 0, 3)})).ok());
  EXPECT_EQ(tables.odd, std::optional<size_t>(1)) << "its keys are to be asked for";
}

TEST_F(Commits, AFailureIsNeverTakenForSuccess) {
  EXPECT_EQ(read(joined({mine, part(1, HVD_CALLBACK_FAILED, 2)})).code, HVD_CALLBACK_FAILED);
  for (const uint64_t failure : {uint64_t{1} << 32, uint64_t{15}, ~uint64_t{0}}) {
    const Status status = read(joined({mine, part(1, failure, 0)}));
    EXPECT_EQ(status.code, HVD_INTERNAL) << failure;
    EXPECT_EQ(status.rank, 1);
  }
}

TEST_F(Commits, SayOfThisRankWhatItSaid) {
  // Without this rank's keys there would be no part to read.
  EXPECT_EQ(read(joined({part(0, 0, 0), part(1, 0, 0)})).code, HVD_INTERNAL);
  for (size_t size = 1; size < mine.size(); ++size)
    EXPECT_FALSE(read(Bytes(mine.begin(), mine.begin() + static_cast<ptrdiff_t>(size))).ok());
}

}  // namespace
}  // namespace hvd::state

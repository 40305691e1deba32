// Every collective, dtype, reduction and number of ranks, on staged and on the user's memory, in one chunk
// and many.
#include "hvd/hvd.h"
#include "modules/mpi_elastic/ranks.h"

namespace hvd::backend::test {
namespace {

struct Case {
  int size;
  RankOptions options;
};

class MpiCollectives : public StartedApart, public testing::WithParamInterface<Case> {};

TEST_P(MpiCollectives, AreRight) {
  MpiJob job;
  const std::vector<RankPtr> ranks = start(job, GetParam().size, GetParam().options);
  must_form(job, all_of(ranks));
  expect_all(all_of(ranks), "check");
  expect_all(all_of(ranks), "disconnect");
  // Of the same processes in another order.
  Ranks turned = all_of(ranks);
  std::rotate(turned.begin(), turned.begin() + 1, turned.end());
  must_form(job, turned);
  expect_all(turned, "check");
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiCollectives,
                         testing::Values(Case{1, {}}, Case{2, {}}, Case{3, {true, 4096}}, Case{4, {}},
                                         Case{5, {true, 65536}}, Case{2, {false, 65536}},
                                         Case{4, {false, 1 << 20}}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return std::to_string(info.param.size) +
                                  (info.param.options.elastic ? "Staged" : "Direct") +
                                  std::to_string(info.param.options.segment_bytes);
                         });

using MpiOptions = StartedApart;

TEST_F(MpiOptions, RefuseToMixStagedAndDirect) {
  MpiJob job;
  MpiRank one(job), other(job, {false, 1 << 20});
  const std::vector<std::string> answers = form(job, {&one, &other});
  // Who finds out first says so; the other may have heard only that its peer gave up.
  const std::string invalid = std::to_string(HVD_INVALID) + " ", lost = std::to_string(HVD_PEER_LOST) + " ";
  bool said = false;
  for (int rank = 0; rank < 2; ++rank) {
    const std::string reason = "rank " + std::to_string(1 - rank) + " and rank " + std::to_string(rank) +
                               " don't agree on the option 'elastic'";
    said |= answers[rank] == invalid + reason;
    EXPECT_TRUE(answers[rank] == invalid + reason || answers[rank].starts_with(lost)) << answers[rank];
  }
  EXPECT_TRUE(said) << answers[0] << "; " << answers[1];
}

}  // namespace
}  // namespace hvd::backend::test

// torchrun's variables for workers.
#include "driver/torchrun.h"

#include <gtest/gtest.h>

namespace hvd::driver {
namespace {

using Variables = std::vector<std::string>;

TEST(Torchrun, WhoBeginsHasARank) {
  EXPECT_EQ(torchrun_variables({3, 1, 2, 4, true, "head", 29500}),
            (Variables{"LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=head", "MASTER_PORT=29500",
                       "RANK=3", "WORLD_SIZE=4"}));
}

TEST(Torchrun, TheLastHostMayHaveMoreSlots) {
  const Variables variables = torchrun_variables({2, 0, 8, 3, true, "head", 1});
  EXPECT_EQ(variables[1], "LOCAL_WORLD_SIZE=1");
}

TEST(Torchrun, WhoComesLaterOrWaitsHasNone) {
  const Variables expected = {"LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=head", "MASTER_PORT=1"};
  EXPECT_EQ(torchrun_variables({4, 0, 2, 4, true, "head", 1}), expected);
  EXPECT_EQ(torchrun_variables({1, 0, 2, 4, false, "head", 1}), expected);
}

TEST(Torchrun, APortIsFound) { EXPECT_NE(free_port(), 0); }

}  // namespace
}  // namespace hvd::driver

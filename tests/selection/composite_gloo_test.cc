// Gloo and a double of a backend for device memory as one backend of each of several ranks (threads of this
// process).
#include <numeric>

#include "selection/backend_double.h"
#include "selection/composite.h"
#include "selection/relay.h"

namespace hvd::selection::test {
namespace {

struct Rank {
  explicit Rank(bool with_device = true) {
    const auto relay = std::make_shared<Relay>(inbox.handlers());
    const backend::HostHandlers handlers = Relay::handlers(relay, "gloo", true);
    std::vector<Selected> selected(1);
    const Status status = open_module("gloo", {{"interface", "127.0.0.1"}}, handlers, &selected[0].instance);
    EXPECT_TRUE(status.ok()) << status.message;
    if (with_device) {
      auto instance = std::make_unique<BackendDouble>("device_double", kDevice, diary);
      device = instance.get();
      selected.push_back({std::move(instance), "the test wants it", true});
    }
    instance = make_composite(std::move(selected), {}, std::make_shared<Logger>());
  }
  Inbox inbox;
  std::shared_ptr<Diary> diary = std::make_shared<Diary>();
  BackendDouble* device = nullptr;
  std::unique_ptr<backend::Instance> instance;
};

using Ranks = std::vector<std::unique_ptr<Rank>>;

std::vector<Status> connect(const Ranks& ranks, uint64_t generation) {
  std::vector<backend::Member> members;
  for (const auto& rank : ranks) {
    backend::Member member{members.size() + 1, "localhost", {}};
    EXPECT_TRUE(rank->instance->offers(&member.offers).ok());
    members.push_back(std::move(member));
  }
  std::vector<Status> statuses(ranks.size());
  on_all(static_cast<int>(ranks.size()), [&](int rank) {
    statuses[static_cast<size_t>(rank)] =
        ranks[static_cast<size_t>(rank)]->instance->connect(generation, rank, members, kSoon);
  });
  return statuses;
}

void expect_ok(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.message;
}

hvd_backend_op sum_of(Pending& pending, uint64_t sequence, std::vector<float>& data) {
  hvd_backend_op op = pending.op(HVD_COLLECTIVE_ALLREDUCE, sequence);
  op.dtype = HVD_DTYPE_FLOAT32;
  op.reduction = HVD_REDUCTION_SUM;
  op.input = op.output = data.data();
  op.count = data.size();
  return op;
}

TEST(CompositeWithGloo, EachMemoryHasItsBackendAndMessagesTravel) {
  Ranks ranks;
  for (int r = 0; r < 3; ++r) ranks.push_back(std::make_unique<Rank>());
  expect_ok(connect(ranks, 1));
  on_all(3, [&](int r) {
    Rank& rank = *ranks[static_cast<size_t>(r)];
    for (uint64_t sequence = 1; sequence <= 20; sequence += 2) {
      std::vector<float> data(1000);
      std::iota(data.begin(), data.end(), static_cast<float>(r));
      Pending host, device;
      EXPECT_TRUE(rank.instance->submit(sum_of(host, sequence, data)).ok());
      hvd_backend_op op = device.op(HVD_COLLECTIVE_ALLREDUCE, sequence + 1);
      op.dtype = HVD_DTYPE_FLOAT32;
      op.memory = HVD_MEMORY_CUDA;
      EXPECT_TRUE(run(*rank.instance, op, device).ok());
      EXPECT_TRUE(host.wait().ok());
      for (size_t i = 0; i < data.size(); ++i) ASSERT_EQ(data[i], static_cast<float>(3 * i + 3)) << i;
    }
    const uint8_t word[] = {static_cast<uint8_t>(r)};
    EXPECT_TRUE(rank.instance->send_message((r + 1) % 3, word).ok());
    const Inbox::Message message = rank.inbox.next_message();
    EXPECT_EQ(message.source, (r + 2) % 3);
    EXPECT_EQ(message.data, std::vector<uint8_t>{static_cast<uint8_t>((r + 2) % 3)});
    EXPECT_EQ(rank.diary->lines().size(), 11U);  // its connect, and ten operations
  });
  for (const auto& rank : ranks) EXPECT_TRUE(rank->inbox.losses().empty());
  on_all(3, [&](int r) { ranks[static_cast<size_t>(r)]->instance->disconnect(); });
  for (const auto& rank : ranks) EXPECT_TRUE(rank->diary->comes("device_double disconnect"));
}

// Contract 3: what is pending in either backend ends, on every rank, and the loss is told once.
TEST(CompositeWithGloo, ALossEndsWhatIsPendingInBoth) {
  Ranks ranks;
  for (int r = 0; r < 3; ++r) ranks.push_back(std::make_unique<Rank>());
  for (const auto& rank : ranks) {
    rank->device->holds = true;
    // The core aborts the instance when it hears of a loss.
    rank->inbox.on_failure = [instance = rank->instance.get()](const Inbox::Loss& loss) {
      instance->abort(loss.generation);
    };
  }
  expect_ok(connect(ranks, 1));
  std::vector<std::vector<float>> data(2, std::vector<float>(100000));
  std::vector<Pending> hosts(2), devices(2);
  for (size_t r = 0; r < 2; ++r) {
    ASSERT_TRUE(ranks[r]->instance->submit(sum_of(hosts[r], 1, data[r])).ok());
    hvd_backend_op op = devices[r].op(HVD_COLLECTIVE_ALLREDUCE, 2);
    op.dtype = HVD_DTYPE_FLOAT32;
    op.memory = HVD_MEMORY_CUDA;
    ASSERT_TRUE(ranks[r]->instance->submit(op).ok());
  }
  ranks[2]->instance.reset();  // as if it died
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(hosts[r].wait().code, HVD_PEER_LOST);
    EXPECT_EQ(devices[r].wait().code, HVD_PEER_LOST);
    EXPECT_TRUE(ranks[r]->diary->comes("device_double abort 1"));
    EXPECT_EQ(ranks[r]->inbox.losses().size(), 1U);
  }

  // The survivors go on, and take a newcomer in that has no device.
  ranks[2] = std::make_unique<Rank>(false);
  for (size_t r = 0; r < 2; ++r) {
    ranks[r]->inbox.on_failure = nullptr;
    ranks[r]->diary->take();
  }
  expect_ok(connect(ranks, 2));
  on_all(3, [&](int r) {
    Rank& rank = *ranks[static_cast<size_t>(r)];
    std::vector<float> ones(10, 1);
    Pending pending;
    EXPECT_TRUE(run(*rank.instance, sum_of(pending, 1, ones), pending).ok());
    EXPECT_EQ(ones, std::vector<float>(10, 3));
    EXPECT_FALSE(rank.instance->supports(HVD_MEMORY_CUDA, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE));
    EXPECT_TRUE(rank.diary->lines().empty());
  });
}

}  // namespace
}  // namespace hvd::selection::test

// Ranks of a host whose process runs out of memory, at every allocation: nothing ends it, and every wait ends
// (contract 10, 12).
#include <gtest/gtest.h>

#include <algorithm>
#include <shared_mutex>

#include "collective/engine.h"
#include "local/cluster.h"
#include "starved.h"

namespace hvd::local::test {
namespace {

using hvd::test::Starved;

// The reader takes a message once there is memory for it, and not a byte more than it has room for.
TEST(LocalStreamWithoutMemory, KeepsTheMessageInTheRing) {
  auto ring = std::make_unique<Ring>();
  StreamWriter writer(*ring);
  StreamReader reader(*ring);
  ASSERT_TRUE(writer.write(std::vector<uint8_t>(100, 1)));
  ASSERT_EQ(reader.next(), StreamReader::Result::kMessage);
  const std::vector<uint8_t> large(kMostMessage / 2, 2);
  ASSERT_TRUE(writer.write(large));
  {
    const Starved starved(0);
    EXPECT_THROW(reader.next(), std::bad_alloc);
  }
  StreamReader::Result result = StreamReader::Result::kNothing;
  for (int turns = 0; result == StreamReader::Result::kNothing && turns < 100; ++turns) {
    result = reader.next();
    ASSERT_TRUE(writer.flush());
  }
  ASSERT_EQ(result, StreamReader::Result::kMessage);
  EXPECT_TRUE(std::equal(large.begin(), large.end(), reader.message().begin(), reader.message().end()));
}

/// Two ranks with engines over shared memory, and the thread that drives their deadlines.
class Pair {
 public:
  Pair() {
    for (int32_t rank = 0; rank < kSize; ++rank) {
      backend::HostHandlers handlers;
      handlers.message = [this, rank](uint64_t, int32_t source, std::span<const uint8_t> data) {
        const std::shared_lock lock(gate_);
        if (!gone_) engines_[static_cast<size_t>(rank)]->deliver(source, data);
      };
      handlers.failure = [this](uint64_t, int32_t, const std::string&) { broken_ = true; };
      ranks_.push_back(std::make_unique<Rank>(Shares::kAll, std::move(handlers)));
    }
    for (int32_t rank = 0; rank < kSize; ++rank) {
      collective::EngineConfig config;
      config.generation = 1;
      config.rank = rank;
      config.hosts = {"host", "host"};
      engines_.push_back(
          collective::Engine::open(std::move(config), *ranks_[static_cast<size_t>(rank)]->instance));
    }
    connect_all(ranks_, 1);
    for (const auto& engine : engines_) engine->start();
    timer_ = std::thread([this] {
      while (!over_) {
        for (const auto& engine : engines_) engine->tick(now());
        if (broken_) fail();  // as a driver would
        std::this_thread::sleep_for(milliseconds(2));
      }
    });
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair() {
    over_ = true;
    timer_.join();
    fail();
    for (const auto& rank : ranks_) rank->instance->disconnect();
    {
      const std::unique_lock lock(gate_);  // one message may be under way
      gone_ = true;
    }
    engines_.clear();
  }

  /// An allreduce on both, as many bytes as are wanted; each gives its outcome.
  std::vector<Status> allreduce(size_t elements, bool repeated) {
    std::vector<Status> statuses(kSize);
    std::vector<std::vector<float>> values(kSize, std::vector<float>(elements, 1));
    std::vector<std::thread> threads;
    const auto one = [&](size_t rank) {
      Status& status = statuses[rank];
      for (int round = 0; status.ok() && round < (repeated ? 4 : 1); ++round) {
        try {
          collective::Submission s;
          s.name = "gradient";
          s.kind = collective::Kind::kAllreduce;
          s.inputs = s.outputs = {{values[rank].data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(elements)}}};
          s.timeout = std::chrono::seconds(2);
          if (auto met = engines_[rank]->meet(s)) {
            if (met->operation == nullptr) {
              status = met->status;
              continue;
            }
            status = finish(*met->operation);
            continue;
          }
          const auto operation = engines_[rank]->submit(std::move(s));
          status = finish(*operation);
        } catch (const std::exception&) { status = {HVD_INTERNAL, "thrown"}; }
      }
      if (!status.ok()) broken_ = true;
    };
    const auto body = [&](size_t rank) noexcept { one(rank); };
    for (size_t rank = 1; rank < kSize; ++rank) threads.emplace_back(body, rank);
    arm();
    one(0);
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  std::function<void()> arm = [] {};

 private:
  static constexpr int32_t kSize = 2;

  static Status finish(collective::Operation& operation) {
    const Time until = now() + kSoon;
    while (!operation.wait(milliseconds(100))) {
      if (now() > until) return {HVD_TIMEOUT, "the wait has not ended"};
    }
    return operation.status();
  }
  void fail() noexcept {
    try {
      for (const auto& engine : engines_) engine->fail({HVD_PEER_LOST, "a rank is lost"});
    } catch (const std::exception&) {}  // the next time
  }

  std::atomic<bool> broken_{false}, over_{false};
  std::shared_mutex gate_;
  bool gone_ = false;  // guarded by gate_
  Ranks ranks_;
  std::vector<std::shared_ptr<collective::Engine>> engines_;
  std::thread timer_;
};

class LocalWithoutMemory : public ::testing::TestWithParam<size_t> {};  // elements

TEST_P(LocalWithoutMemory, EveryWaitEndsWhereverItRunsOut) {
  constexpr size_t kMost = 3000;
  bool failed = true;
  for (size_t at = 0; failed && at < kMost; ++at) {
    Pair pair;
    std::optional<Starved> starved;
    pair.arm = [&] { starved.emplace(at, Starved::Whose::kAnybodys); };
    const std::vector<Status> statuses = pair.allreduce(GetParam(), true);
    failed = Starved::has_failed();
    starved.reset();
    for (const Status& status : statuses) {
      ASSERT_TRUE(status.ok() || failed) << at << ": " << status.message;
      ASSERT_NE(status.message, "the wait has not ended") << at;
    }
  }
  EXPECT_FALSE(failed);
}

INSTANTIATE_TEST_SUITE_P(Sizes, LocalWithoutMemory, ::testing::Values(2, 2000, 300000),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace hvd::local::test

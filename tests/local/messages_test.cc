// Messages between instances that share memory: order, sizes, load, and whoever carries them.
#include <signal.h>

#include <cstring>
#include <fstream>
#include <set>

#include "local/cluster.h"

namespace hvd::local::test {
namespace {

std::vector<uint8_t> make_message(std::mt19937& random, uint32_t number, size_t size) {
  std::vector<uint8_t> message(size + 8);
  const auto first = static_cast<uint8_t>(random());
  for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<uint8_t>(first + i);
  std::memcpy(message.data(), &number, 4);
  const auto length = static_cast<uint32_t>(size);
  std::memcpy(message.data() + 4, &length, 4);
  return message;
}

/// Takes what comes: numbers in order from each source, every byte as it was sent.
class Receiver {
 public:
  backend::HostHandlers handlers(size_t size) {
    next_.resize(size);
    backend::HostHandlers handlers;
    handlers.message = [this](uint64_t, int32_t source, std::span<const uint8_t> data) {
      uint32_t number = 0, length = 0;
      ASSERT_GE(data.size(), 8U);
      std::memcpy(&number, data.data(), 4);
      std::memcpy(&length, data.data() + 4, 4);
      EXPECT_EQ(length + 8, data.size());
      size_t good = 8;
      for (uint8_t next = data.size() > 8 ? data[8] : 0; good < data.size() && data[good] == next; ++good)
        ++next;
      EXPECT_EQ(good, data.size());
      const std::lock_guard lock(mutex_);
      EXPECT_EQ(number, next_[static_cast<size_t>(source)]++) << "from rank " << source;
      if (++received_ >= expected_) {
        all_ = true;
        changed_.notify_all();
      }
    };
    return handlers;
  }
  void expect(size_t count) { expected_ = count; }
  bool wait() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kSoon, [this] { return all_.load(); });
  }
  const std::atomic<bool>& all() const { return all_; }
  size_t received() {
    const std::lock_guard lock(mutex_);
    return received_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> next_;
  size_t received_ = 0, expected_ = 0;
  std::atomic<bool> all_{false};
};

enum class Carrier { kThread, kWaiter, kBoth };

class UnderLoad : public testing::TestWithParam<Carrier> {};

// Everybody to everybody, sizes from a seed: some far beyond what a ring takes.
TEST_P(UnderLoad, EveryMessageComesOnceAndInOrder) {
  constexpr size_t kRanks = 4, kMessages = 200;
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    std::vector<Receiver> receivers(kRanks);
    Ranks ranks;
    for (Receiver& receiver : receivers) {
      receiver.expect((kRanks - 1) * kMessages);
      ranks.push_back(std::make_unique<Rank>(Shares::kAll, receiver.handlers(kRanks)));
    }
    connect_all(ranks, seed);
    on_all(kRanks, [&](int rank) {
      const auto me = static_cast<size_t>(rank);
      backend::Instance& instance = *ranks[me]->instance;
      std::thread waiter;
      if (GetParam() == Carrier::kBoth) {
        waiter = std::thread([&] {
          const Time until = now() + kSoon;
          while (!receivers[me].all() && now() < until) instance.progress(receivers[me].all(), until);
        });
      }
      std::mt19937 random(seed * 100 + static_cast<uint32_t>(rank));
      std::vector<uint32_t> numbers(kRanks);
      for (size_t i = 0; i < (kRanks - 1) * kMessages; ++i) {
        auto to = (me + 1 + i % (kRanks - 1)) % kRanks;
        size_t size = random() % 200;
        if (random() % 20 == 0) size = random() % (kMostMessage / 4);
        if (random() % 200 == 0) size = kMostMessage - 8;
        const Status status =
            instance.send_message(static_cast<int32_t>(to), make_message(random, numbers[to]++, size));
        ASSERT_TRUE(status.ok()) << status.message;
      }
      if (GetParam() == Carrier::kWaiter) {
        const Time until = now() + kSoon;
        while (!receivers[me].all() && now() < until) instance.progress(receivers[me].all(), until);
      }
      EXPECT_TRUE(receivers[me].wait()) << "rank " << rank << " got " << receivers[me].received();
      if (waiter.joinable()) waiter.join();
    });
    for (const auto& rank : ranks) rank->instance->disconnect();
  }
}
INSTANTIATE_TEST_SUITE_P(Carriers, UnderLoad,
                         testing::Values(Carrier::kThread, Carrier::kWaiter, Carrier::kBoth));

// Handlers answer: two ranks throw a message back and forth, carried by whoever waits or by the thread.
class PingPong : public testing::TestWithParam<bool> {};

TEST_P(PingPong, HandlersMaySend) {
  constexpr int kRounds = 3000;
  std::vector<std::atomic<int>> counts(2);
  std::vector<std::atomic<bool>> over(2);
  std::vector<backend::Instance*> instances(2);
  Ranks ranks;
  for (size_t i = 0; i < 2; ++i) {
    backend::HostHandlers handlers;
    handlers.message = [&, i](uint64_t, int32_t source, std::span<const uint8_t> data) {
      const int count = ++counts[i];
      if (count <= kRounds) static_cast<void>(instances[i]->send_message(source, data));
      if (count >= kRounds) over[i] = true;
    };
    ranks.push_back(std::make_unique<Rank>(Shares::kAll, handlers));
    instances[i] = ranks[i]->instance.get();
  }
  connect_all(ranks, 1);
  ASSERT_TRUE(instances[0]->send_message(1, bytes_of("12345678")).ok());
  on_all(2, [&](int rank) {
    const auto me = static_cast<size_t>(rank);
    const Time until = now() + kSoon;
    while (!over[me] && now() < until) {
      if (GetParam()) {
        instances[me]->progress(over[me], until);
      } else {
        std::this_thread::yield();
      }
    }
    EXPECT_TRUE(over[me]) << counts[me];
  });
  for (const auto& rank : ranks) rank->instance->disconnect();
}
INSTANTIATE_TEST_SUITE_P(WithWaiters, PingPong, testing::Bool());

TEST(LocalMessages, ASenderIsNotHeldUpByAReceiverThatIsBusy) {
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  std::atomic<size_t> bytes{0};
  std::promise<void> all;
  constexpr size_t kMessages = 40;
  backend::HostHandlers handlers;
  handlers.message = [&](uint64_t, int32_t, std::span<const uint8_t> data) {
    gone.wait();
    if ((bytes += data.size()) == kMessages * kMostMessage) all.set_value();
  };
  Ranks ranks;
  ranks.push_back(std::make_unique<Rank>());
  ranks.push_back(std::make_unique<Rank>(Shares::kAll, handlers));
  connect_all(ranks, 1);
  for (size_t i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(ranks[0]->instance->send_message(1, std::vector<uint8_t>(kMostMessage)).ok());
  }
  go.set_value();
  EXPECT_EQ(all.get_future().wait_for(kSoon), std::future_status::ready) << bytes;
}

TEST(LocalMessages, WrongDestinationsAndSizesAreRefused) {
  Ranks ranks = make_ranks(2);
  EXPECT_EQ(ranks[0]->instance->send_message(1, {}).code, HVD_PEER_LOST) << "not connected";
  connect_all(ranks, 1);
  for (const int32_t destination : {-1, 0, 2, 1000}) {
    EXPECT_EQ(ranks[0]->instance->send_message(destination, bytes_of("x")).code, HVD_INVALID);
  }
  EXPECT_EQ(ranks[0]->instance->send_message(1, std::vector<uint8_t>(kMostMessage + 1)).code, HVD_INVALID);
  EXPECT_TRUE(ranks[0]->instance->send_message(1, {}).ok());
  EXPECT_EQ(ranks[1]->inbox.next_message().data.size(), 0U);
}

TEST(LocalMessages, WhatWasSentBeforeThePeerWasConnectedComes) {
  Ranks ranks = make_ranks(2);
  const std::vector<backend::Member> members = members_of(ranks);
  ASSERT_TRUE(ranks[0]->instance->connect(1, 0, members, kSoon).ok());
  ASSERT_TRUE(ranks[0]->instance->send_message(1, bytes_of("early")).ok());
  ASSERT_TRUE(ranks[1]->instance->connect(1, 1, members, kSoon).ok());
  EXPECT_EQ(ranks[1]->inbox.next_message().data, bytes_of("early"));
}

// Someone who waits without use is let go, and messages are carried all the same.
TEST(LocalMessages, AWaiterIsLetGo) {
  Ranks ranks = make_ranks(2);
  connect_all(ranks, 1);
  const std::atomic<bool> never{false};
  for (int i = 0; i < 200; ++i) {
    ranks[1]->instance->progress(never, now() + kSoon);
    ASSERT_TRUE(ranks[0]->instance->send_message(1, bytes_of(std::to_string(i))).ok());
    EXPECT_EQ(ranks[1]->inbox.next_message().data, bytes_of(std::to_string(i)));
  }
}

// contract 10: the program's signals stay with its threads.
TEST(LocalThreads, BlockEverySignal) {
  const auto threads = [] {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
      found.insert(entry.path());
    return found;
  };
  const std::set<std::string> before = threads();
  Ranks ranks = make_ranks(1);
  int checked = 0;
  for (const std::string& thread : threads()) {
    if (before.contains(thread)) continue;
    std::ifstream status(thread + "/status");
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("SigBlk:")) continue;
      const uint64_t blocked = std::stoull(line.substr(7), nullptr, 16);
      for (const int signal : {SIGPIPE, SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) {
        EXPECT_NE(blocked >> (signal - 1) & 1, 0U) << thread << " signal " << signal;
      }
      ++checked;
    }
  }
  EXPECT_GE(checked, 2);
}

}  // namespace
}  // namespace hvd::local::test

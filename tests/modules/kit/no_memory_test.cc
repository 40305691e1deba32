// Links and lanes of ranks whose process runs out of memory: nothing ends it, and every wait ends (contract
// 10, 12).
#include <gtest/gtest.h>

#include <future>

#include "modules/kit/host_generation.h"
#include "modules/kit/links.h"
#include "modules/kit/lone_group.h"
#include "patience.h"
#include "starved.h"

namespace hvdkit {
namespace {

using hvd::test::Starved;

const auto kPatience = hvd::test::patient(std::chrono::seconds(30));
constexpr int kSize = 3;

/// A rank that keeps what it is told. It takes no memory itself.
struct Rank {
  explicit Rank(Encrypt encrypt)
      : links("127.0.0.1",
              LinkHooks{[this](int, const void*, size_t) { tell(messages); },
                        [this](int, const std::string&) { tell(failures); }, [](const std::string&) {},
                        [this](int, uint32_t, bool, Socket) { tell(streams); }},
              encrypt) {}
  void tell(int& of) {
    const std::lock_guard lock(mutex);
    ++of;
    changed.notify_all();
  }
  std::mutex mutex;
  std::condition_variable changed;
  int messages = 0, streams = 0, failures = 0;
  bool over = false;
  Links links;
};

enum class End { kAllCame, kFailed, kStillWaits };

class Job {
 public:
  explicit Job(Encrypt encrypt) {
    for (int i = 0; i < kSize; ++i) ranks_.push_back(std::make_unique<Rank>(encrypt));
    for (const auto& rank : ranks_) members_.push_back(rank->links.blob());
    for (int i = 0; i < kSize; ++i) ends_.push_back(End::kStillWaits);
  }

  /// Ranks meet, and each sends to each and asks for a stream to each. When one fails, all are aborted, as a
  /// driver would.
  const std::vector<End>& run(size_t starved_at) {
    std::vector<std::thread> threads;
    std::promise<void> armed;
    const std::shared_future<void> begin(armed.get_future());
    for (int i = 0; i < kSize; ++i) {
      threads.emplace_back([this, i, begin] {
        begin.wait();
        ends_[static_cast<size_t>(i)] = one(i);
      });
    }
    std::optional<Starved> starved;
    starved.emplace(starved_at, Starved::Whose::kAnybodys);
    armed.set_value();
    for (std::thread& thread : threads) thread.join();
    starved.reset();
    for (const auto& rank : ranks_) rank->links.stop();
    return ends_;
  }

 private:
  End one(int number) noexcept {
    Rank& rank = *ranks_[static_cast<size_t>(number)];
    const Clock::time_point deadline = Clock::now() + kPatience;
    try {
      rank.links.meet({7, number, members_}, deadline);
      rank.links.open();
      for (int peer = 0; peer < kSize; ++peer) {
        if (peer == number) continue;
        rank.links.send(peer, "message", 7);
        rank.links.ask(peer, 1);
      }
    } catch (const std::exception& error) {
      const auto* const failure = dynamic_cast<const Failure*>(&error);
      give_up();
      return failure != nullptr && failure->status == HVD_TIMEOUT ? End::kStillWaits : End::kFailed;
    }
    std::unique_lock lock(rank.mutex);
    const auto all = [&] { return rank.messages == kSize - 1 && rank.streams == 2 * (kSize - 1); };
    const bool ended =
        rank.changed.wait_until(lock, deadline, [&] { return all() || rank.failures > 0 || rank.over; });
    if (all()) return End::kAllCame;
    lock.unlock();
    give_up();
    return ended ? End::kFailed : End::kStillWaits;
  }
  void give_up() noexcept {
    for (const auto& rank : ranks_) {
      {
        const std::lock_guard lock(rank->mutex);
        rank->over = true;
        rank->changed.notify_all();
      }
      rank->links.abort();
    }
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<Blob> members_;
  std::vector<End> ends_;
};

class LinksWithoutMemory : public testing::TestWithParam<Encrypt> {};

TEST_P(LinksWithoutMemory, EveryWaitEndsWhereverItRunsOut) {
  constexpr size_t kMost = 5000;
  bool failed = true;
  for (size_t at = 0; failed && at < kMost; ++at) {
    Job job(GetParam());
    const std::vector<End>& ends = job.run(at);
    failed = Starved::has_failed();
    for (const End end : ends) {
      ASSERT_NE(end, End::kStillWaits) << at;
      ASSERT_TRUE(failed || end == End::kAllCame) << at;
    }
  }
  EXPECT_FALSE(failed);
}

// A frame of which a part has left, and the rest finds no memory, is not continued by the next one.
TEST_P(LinksWithoutMemory, ThePeerOfHalfAFrameSeesTheEndOfItsLink) {
  const std::string first(kMaxMessage, 'x'), second(kMaxMessage, 'y');
  std::promise<void> reads;
  std::promise<std::string> failure;
  std::atomic<bool> mixed{false}, failed{false};
  Links zero(
      "127.0.0.1",
      LinkHooks{[&, go = std::shared_future<void>(reads.get_future())](int, const void* data, size_t size) {
                  go.wait();
                  const std::string text(static_cast<const char*>(data), size);
                  if (text != first && text != second) mixed = true;
                },
                [&](int peer, const std::string& text) {
                  if (!failed.exchange(true)) failure.set_value(std::to_string(peer) + ":" + text);
                },
                [](const std::string&) {}},
      GetParam());
  Links one(
      "127.0.0.1",
      LinkHooks{[](int, const void*, size_t) {}, [](int, const std::string&) {}, [](const std::string&) {}},
      GetParam());
  const std::vector<Blob> members{zero.blob(), one.blob()};
  const Clock::time_point deadline = Clock::now() + kPatience;
  auto met = std::async(std::launch::async, [&] { zero.meet({7, 0, members}, deadline); });
  one.meet({7, 1, members}, deadline);
  met.get();
  zero.open();
  one.open();
  bool thrown = false;
  while (!thrown && Clock::now() < deadline) {  // until the system's buffers are full
    const Starved starved(0);
    try {
      one.send(0, first.data(), first.size());
    } catch (const std::exception&) { thrown = true; }
  }
  ASSERT_TRUE(thrown);
  try {
    one.send(0, second.data(), second.size());
  } catch (const Failure&) {}  // the link's end may be known already
  reads.set_value();
  auto told = failure.get_future();
  ASSERT_EQ(told.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(told.get(), "1:rank 1 closed its link: its process is gone");
  EXPECT_FALSE(mixed);
}

INSTANTIATE_TEST_SUITE_P(Links, LinksWithoutMemory, testing::Values(Encrypt::kOff, Encrypt::kOn),
                         [](const auto& info) { return info.param == Encrypt::kOn ? "Encrypted" : "Clear"; });

/// Failures that a rank reports, and the end of its operation.
struct Told {
  std::promise<std::string> failure, done;
  static void report(void* context, uint64_t, int32_t peer, const char* text) {
    static_cast<Told*>(context)->failure.set_value(std::to_string(peer) + ":" + text);
  }
  static void end(void* context, hvd_status status, const hvd_error* error) {
    static_cast<Told*>(context)->done.set_value(std::to_string(status) + ":" + error->backend + ":" +
                                                error->message);
  }
};

std::optional<Starved> g_starved;  // in a lane's thread

void run_out(Party&, const Task&) {
  g_starved.emplace(0);
  throw std::bad_alloc();
}
void lose_a_peer(Party&, const Task&) {
  const Failure failure(HVD_PEER_LOST, "the link to a rank that is not there has broken");
  g_starved.emplace(0);
  throw failure;
}

class LaneWithoutMemory : public testing::TestWithParam<HostGeneration::Run> {};

TEST_P(LaneWithoutMemory, EndsTheOperationThatItCanNotSayTheFailureOf) {
  Told told;
  hvd_backend_host host{};
  host.struct_size = sizeof(host);
  host.context = &told;
  host.failure = Told::report;
  HostConfig config;
  config.ip = "127.0.0.1";
  HostGeneration generation("test", GetParam(), config, host);
  const LoneGroup alone(generation);
  generation.connect(alone.group);
  hvd_backend_op op{};
  op.struct_size = sizeof(op);
  op.collective = HVD_COLLECTIVE_BARRIER;
  op.memory = HVD_MEMORY_HOST;
  op.done = Told::end;
  op.done_context = &told;
  auto failure = told.failure.get_future(), done = told.done.get_future();
  generation.submit(checked(op, HVD_MEMORY_HOST, 0, 1));
  ASSERT_EQ(done.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(done.get(), std::to_string(HVD_INTERNAL) + ":test:out of memory");
  ASSERT_EQ(failure.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(failure.get(), "0:out of memory");
  generation.teardown();
  g_starved.reset();
}

INSTANTIATE_TEST_SUITE_P(Lane, LaneWithoutMemory, testing::Values(run_out, lose_a_peer));

}  // namespace
}  // namespace hvdkit

// Links under pressure: a peer that floods, one that does not read, and a rank that was held up itself.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <future>

#include "modules/kit/links.h"
#include "patience.h"

namespace hvdkit {
namespace {

const auto kPatience = hvd::test::patient(std::chrono::seconds(40));

/// Events that a rank was told.
struct Told {
  std::mutex mutex;
  std::condition_variable changed;
  size_t bytes = 0, streams = 0;
  std::vector<std::string> failures;
  bool held = false;  // the links' thread waits in a message

  template <class Change>
  void change(Change change) {
    const std::lock_guard lock(mutex);
    change();
    changed.notify_all();
  }
  template <class Condition>
  bool await(Condition condition) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, condition);
  }
};

struct Rank {
  explicit Rank(Encrypt encrypt = Encrypt::kOff, const LinkLimits& limits = {})
      : links("127.0.0.1",
              LinkHooks{[this](int, const void*, size_t size) {
                          if (on_message) on_message();
                          told.change([&] { told.bytes += size; });
                        },
                        [this](int peer, const std::string& text) {
                          told.change([&] { told.failures.push_back(std::to_string(peer) + ":" + text); });
                        },
                        [](const std::string&) {},
                        [this](int, uint32_t, bool, Socket socket) {
                          told.change([&] { ++told.streams; });
                          sockets.push_back(std::move(socket));
                        }},
              encrypt, limits) {}
  Told told;
  std::vector<Socket> sockets;
  std::function<void()> on_message;
  Links links;
};

/// All ranks' links, by meeting at rank 0; `blobs`: where they listen, if it is not where they say.
void meet(const std::vector<Rank*>& ranks, std::vector<Blob> blobs = {},
          Clock::duration patience = kPatience) {
  if (blobs.empty()) {
    for (Rank* rank : ranks) blobs.push_back(rank->links.blob());
  }
  const Clock::time_point deadline = Clock::now() + patience;
  std::vector<std::future<void>> met;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    met.push_back(std::async(std::launch::async, [&, rank] {
      ranks[rank]->links.meet({7, static_cast<int>(rank), blobs}, deadline);
      ranks[rank]->links.open();
    }));
  }
  for (auto& each : met) each.get();
}

class Flood : public testing::TestWithParam<Encrypt> {};

// Contracts 3 and 12: the thread that reads looks after all links and ends when it shall, whatever one says.
TEST_P(Flood, KeepsNeitherOtherLinksNorTheEndWaiting) {
  Rank zero(GetParam()), one(GetParam()), two(GetParam());
  constexpr size_t kAhead = size_t{64} << 20;
  zero.on_message = [] {
    // Slower than whoever floods: more is there at any time.
    const Clock::time_point until = Clock::now() + std::chrono::milliseconds(1);
    while (Clock::now() < until) {}
  };
  meet({&zero, &one, &two});
  std::atomic<bool> over{false};
  std::thread flood([&] {
    const std::string message(size_t{64} << 10, 'x');
    size_t sent = 0;
    try {
      while (!over) {
        {
          std::unique_lock lock(zero.told.mutex);
          zero.told.changed.wait(lock, [&] { return over || sent < zero.told.bytes + kAhead; });
        }
        one.links.send(0, message.data(), message.size());
        sent += message.size();
      }
    } catch (const Failure&) {}  // the link is over
  });
  EXPECT_TRUE(zero.told.await([&] { return zero.told.bytes > size_t{4} << 20; }));
  two.links.stop();
  two.links.abort();
  EXPECT_TRUE(zero.told.await([&] { return !zero.told.failures.empty(); }))
      << "another link's end was not seen";
  auto stopped = std::async(std::launch::async, [&] { zero.links.stop(); });
  EXPECT_EQ(stopped.wait_for(kPatience), std::future_status::ready);
  zero.told.change([&] { over = true; });
  flood.join();
}
INSTANTIATE_TEST_SUITE_P(Links, Flood, testing::Values(Encrypt::kOff, Encrypt::kOn),
                         [](const auto& info) { return info.param == Encrypt::kOn ? "Encrypted" : "Clear"; });

class Deaf : public testing::TestWithParam<Encrypt> {};

TEST_P(Deaf, APeerThatDoesNotReadIsLostAndNamed) {
  LinkLimits limits;
  limits.unread = size_t{8} << 20;
  Rank zero(GetParam()), one(GetParam(), limits);
  std::promise<void> reads;
  std::shared_future<void> may_read = reads.get_future();
  zero.on_message = [may_read] { may_read.wait(); };
  meet({&zero, &one});
  const std::string message(size_t{1} << 20, 'x');
  size_t taken = 0;
  std::string why;
  try {
    for (; taken < 1000; ++taken) one.links.send(0, message.data(), message.size());
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.status, HVD_PEER_LOST);
    EXPECT_EQ(failure.rank, 0);
    why = failure.what();
  }
  EXPECT_GE(taken, size_t{7});
  EXPECT_LT(taken, size_t{1000});
  EXPECT_NE(why.find("rank 0 does not read: "), std::string::npos) << why;
  EXPECT_NE(why.find(" bytes of messages wait for it, expected at most 8388608"), std::string::npos) << why;
  ASSERT_TRUE(one.told.await([&] { return !one.told.failures.empty(); }));
  EXPECT_EQ(one.told.failures[0].substr(0, 24), "0:rank 0 does not read: ");
  reads.set_value();
}

// Far more than what may wait goes through if the peer reads.
TEST_P(Deaf, APeerThatReadsSlowlyIsNot) {
  LinkLimits limits;
  limits.unread = size_t{8} << 20;
  Rank zero(GetParam()), one(GetParam(), limits);
  meet({&zero, &one});
  const std::string message(size_t{1} << 20, 'x');
  constexpr size_t kMessages = 24;
  for (size_t i = 1; i <= kMessages; ++i) {
    one.links.send(0, message.data(), message.size());
    if (i % 4 == 0) {
      ASSERT_TRUE(zero.told.await([&] { return zero.told.bytes >= (i - 3) * message.size(); }));
    }
  }
  EXPECT_TRUE(zero.told.await([&] { return zero.told.bytes == kMessages * message.size(); }));
  EXPECT_TRUE(one.told.failures.empty());
}
INSTANTIATE_TEST_SUITE_P(Links, Deaf, testing::Values(Encrypt::kOff, Encrypt::kOn),
                         [](const auto& info) { return info.param == Encrypt::kOn ? "Encrypted" : "Clear"; });

/// Stands before a rank's listener, and passes on what comes when it may.
class Gate {
 public:
  explicit Gate(const Blob& behind) : blob(behind), behind_(behind) {
    listener_ = listen_at("127.0.0.1", &blob);
    blob.token = behind.token;
  }
  ~Gate() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  /// Waits for a connection with its first bytes.
  bool comes() {
    front_ = Fd(accepted());
    pollfd poll{front_.get(), POLLIN, 0};
    return front_.get() >= 0 && ::poll(&poll, 1, static_cast<int>(kPatience.count())) == 1;
  }
  void open() {
    socklen_t length = 0;
    const sockaddr_storage address = behind_.sockaddr_of(&length);
    back_ = Fd(::socket(address.ss_family, SOCK_STREAM, 0));
    ASSERT_EQ(::connect(back_.get(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    thread_ = std::thread([this] {
      while (!over_) pass();
    });
  }
  Blob blob;

 private:
  int accepted() {
    pollfd poll{listener_.get(), POLLIN, 0};
    if (::poll(&poll, 1, static_cast<int>(kPatience.count())) != 1) return -1;
    return ::accept(listener_.get(), nullptr, nullptr);
  }
  void pass() {
    pollfd polls[] = {{front_.get(), POLLIN, 0}, {back_.get(), POLLIN, 0}};
    if (::poll(polls, 2, 10) <= 0) return;
    for (int i = 0; i < 2; ++i) {
      if ((polls[i].revents & (POLLIN | POLLHUP)) == 0) continue;
      char bytes[4096];
      const ssize_t got = ::recv(polls[i].fd, bytes, sizeof(bytes), MSG_DONTWAIT);
      if (got <= 0) over_ = true;
      if (got > 0) (void)::send(polls[1 - i].fd, bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
    }
  }

  const Blob behind_;
  Fd listener_, front_, back_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// Contract 19: the peer was as quick as ever; this rank's thread did not run for longer than a peer has time.
TEST(HeldUp, ARankBlamesNobodyForTheTimeInWhichItDidNotRun) {
  constexpr std::chrono::seconds kDials{5};
  LinkLimits limits;
  limits.patience = kDials;
  Rank zero, one(Encrypt::kOff, limits), two;
  std::promise<void> goes_on;
  std::shared_future<void> may_go_on = goes_on.get_future();
  one.on_message = [&, may_go_on] {
    one.told.change([&] { one.told.held = true; });
    may_go_on.wait();
  };
  Gate gate(two.links.blob());
  meet({&zero, &one, &two}, {zero.links.blob(), one.links.blob(), gate.blob}, kDials);
  one.links.ask(2, 1);
  EXPECT_TRUE(gate.comes());
  zero.links.send(1, "hold", 4);
  EXPECT_TRUE(one.told.await([&] { return one.told.held; }));
  std::this_thread::sleep_for(kDials + std::chrono::seconds(2));  // as a process that is stopped
  goes_on.set_value();
  gate.open();
  EXPECT_TRUE(one.told.await([&] { return one.told.streams == 1 || !one.told.failures.empty(); }));
  EXPECT_TRUE(one.told.failures.empty()) << one.told.failures[0];
}

}  // namespace
}  // namespace hvdkit

// Ranks that meet at rank 0: links and streams that are made when they are used, and who learns of whose end.
#include <gtest/gtest.h>

#include <future>

#include "modules/kit/links.h"

namespace hvdkit {
namespace {

constexpr std::chrono::seconds kPatience{20};

struct Rank {
  struct Stream {
    int peer;
    uint32_t stream;
    bool outward;
    Socket socket;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> messages;
  std::vector<std::string> failures;
  std::vector<Stream> streams;

  Links links{"127.0.0.1", LinkHooks{[this](int source, const void* data, size_t size) {
                                       add(messages, std::to_string(source) + ":" +
                                                         std::string(static_cast<const char*>(data), size));
                                     },
                                     [this](int peer, const std::string& text) {
                                       add(failures, std::to_string(peer) + ":" + text);
                                     },
                                     [](const std::string&) {},
                                     [this](int peer, uint32_t stream, bool outward, Socket socket) {
                                       add(streams, Stream{peer, stream, outward, std::move(socket)});
                                     }}};

  template <class Item>
  void add(std::vector<Item>& to, Item item) {
    const std::lock_guard lock(mutex);
    to.push_back(std::move(item));
    changed.notify_all();
  }
  template <class Item>
  bool await(const std::vector<Item>& what, size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, [&] { return what.size() >= count; });
  }
  Socket& stream(bool outward) {
    for (Stream& s : streams) {
      if (s.outward == outward) return s.socket;
    }
    throw std::runtime_error("no such stream");
  }
};

struct Group {
  explicit Group(int size) {
    for (int i = 0; i < size; ++i) ranks.push_back(std::make_unique<Rank>());
    for (const auto& rank : ranks) members.push_back(rank->links.blob());
  }
  // What each that takes part was told; "" if it has met the others.
  std::vector<std::string> meet(int present, Clock::duration patience = kPatience) {
    std::vector<std::future<std::string>> told;
    const Clock::time_point deadline = Clock::now() + patience;
    for (int rank = 0; rank < present; ++rank) {
      told.push_back(std::async(std::launch::async, [&, rank]() -> std::string {
        try {
          of(rank).links.meet({7, rank, members}, deadline);
          of(rank).links.open();
          return "";
        } catch (const Failure& failure) {
          of(rank).links.abort();
          return failure.what();
        }
      }));
    }
    std::vector<std::string> result;
    for (auto& one : told) result.push_back(one.get());
    return result;
  }
  Rank& of(int rank) { return *ranks[static_cast<size_t>(rank)]; }

  std::vector<std::unique_ptr<Rank>> ranks;
  std::vector<Blob> members;
};

TEST(Meeting, OfTwoThatWriteToEachOtherAtTheSameTimeAllArrivesInOrder) {
  Group group(4);
  for (const std::string& told : group.meet(4)) ASSERT_EQ(told, "");
  constexpr size_t kMessages = 50;
  const auto write = [&](int from, int to) {
    for (size_t i = 0; i < kMessages; ++i) {
      const std::string text = std::to_string(i);
      group.of(from).links.send(to, text.data(), text.size());
    }
  };
  auto other = std::async(std::launch::async, [&] { write(2, 3); });
  write(3, 2);
  other.get();
  for (const auto& [to, from] : {std::pair(2, 3), std::pair(3, 2)}) {
    ASSERT_TRUE(group.of(to).await(group.of(to).messages, kMessages));
    for (size_t i = 0; i < kMessages; ++i)
      EXPECT_EQ(group.of(to).messages[i], std::to_string(from) + ":" + std::to_string(i));
  }
  for (const auto& rank : group.ranks) {
    const std::lock_guard lock(rank->mutex);
    EXPECT_TRUE(rank->failures.empty());
  }
}

TEST(Meeting, AStreamIsMadeOnceByWhoAsksForItAndGoesOneWay) {
  Group group(3);
  for (const std::string& told : group.meet(3)) ASSERT_EQ(told, "");
  Rank& one = group.of(1);
  Rank& two = group.of(2);
  one.links.ask(2, 3);
  one.links.ask(2, 3);
  two.links.ask(1, 3);
  ASSERT_TRUE(one.await(one.streams, 2));
  ASSERT_TRUE(two.await(two.streams, 2));
  for (const auto& stream : one.streams) EXPECT_TRUE(stream.peer == 2 && stream.stream == 3);
  const char sent = 'x';
  const iovec part{const_cast<char*>(&sent), 1};
  ASSERT_EQ(one.stream(true).write(&part, 1), 1);
  char got = 0;
  const Clock::time_point deadline = Clock::now() + kPatience;
  while (got == 0 && Clock::now() < deadline) (void)two.stream(false).read(&got, 1);
  EXPECT_EQ(got, 'x');
  EXPECT_EQ(one.streams.size(), 2U);
}

// Rank 2 has no connection to rank 3.
TEST(Meeting, Rank0TellsAllWhoseProcessIsGone) {
  Group group(4);
  for (const std::string& told : group.meet(4)) ASSERT_EQ(told, "");
  group.ranks[3].reset();
  for (const int rank : {0, 1, 2}) {
    ASSERT_TRUE(group.of(rank).await(group.of(rank).failures, 1)) << rank;
    EXPECT_EQ(group.of(rank).failures[0], "3:rank 3 closed its link: its process is gone");
  }
}

TEST(Meeting, WhoGivesUpIsNotBlamedByWhoHearsOfItFromRank0) {
  Group group(4);
  for (const std::string& told : group.meet(4)) ASSERT_EQ(told, "");
  group.of(3).links.abort();
  for (const int rank : {0, 1, 2}) {
    ASSERT_TRUE(group.of(rank).await(group.of(rank).failures, 1)) << rank;
    EXPECT_EQ(group.of(rank).failures[0].substr(0, 3), "-1:");
  }
}

TEST(Meeting, Rank0NamesWhoIsMissingAndNobodyIsThereBeforeAllAre) {
  Group group(4);
  const std::vector<std::string> told = group.meet(3, std::chrono::milliseconds(300));
  EXPECT_EQ(told[0], "no greeting from rank 3 before the deadline");
  EXPECT_EQ(told[1], "rank 0 gave the generation up");
  EXPECT_EQ(told[2], "rank 0 gave the generation up");
}

// Its port is closed and rank 0 does not say why.
TEST(Meeting, APeerThatCanNotBeReachedLaterIsReported) {
  Group group(3);
  (void)listen_at("127.0.0.1", &group.members[2]);  // and is closed again
  group.members[2].token = group.of(2).links.blob().token;
  for (const std::string& told : group.meet(3)) ASSERT_EQ(told, "");
  group.of(1).links.ask(2, 1);
  ASSERT_TRUE(group.of(1).await(group.of(1).failures, 1));
  EXPECT_EQ(group.of(1).failures[0], "2:rank 2 can't be reached: Connection refused");
}

}  // namespace
}  // namespace hvdkit

// Messages of the core: sizes, order, strangers, and who is told of a link's end.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "modules/cluster.h"

namespace hvd::backend::test {
namespace {

std::vector<uint8_t> payload(int source, int number, size_t size) {
  std::vector<uint8_t> data(size);
  uint32_t state = static_cast<uint32_t>(source * 7919 + number);
  for (uint8_t& byte : data) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<uint8_t>(state >> 24);
  }
  return data;
}

TEST(HostMessages, ArriveWholeAndInOrder) {
  constexpr int kSize = 3;
  constexpr size_t kSizes[] = {0, 1, 8, 511, 512, 513, 70000, 1 << 20};
  Workers workers = make_workers(kSize);
  connect_all(workers, 9);
  constexpr int kRounds = 10;
  on_all(kSize, [&](int rank) {
    Instance& instance = *workers[static_cast<size_t>(rank)]->instance;
    int number = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (const size_t size : kSizes) {
        const auto data = payload(rank, number++, size);
        for (int peer = 0; peer < kSize; ++peer) {
          if (peer == rank) continue;
          const Status status = instance.send_message(peer, data);
          ASSERT_TRUE(status.ok()) << status.message;
        }
      }
    }
    int seen[kSize] = {};
    for (int i = 0; i < (kSize - 1) * number; ++i) {
      const Inbox::Message message = workers[static_cast<size_t>(rank)]->inbox.next_message();
      ASSERT_EQ(message.generation, 9U);
      ASSERT_TRUE(message.source >= 0 && message.source < kSize && message.source != rank);
      const int n = seen[message.source]++;
      ASSERT_EQ(message.data, payload(message.source, n, kSizes[static_cast<size_t>(n) % std::size(kSizes)]))
          << "message " << n << " of rank " << message.source;
    }
  });
}

TEST(HostMessages, PingPong) {
  Workers workers = make_workers(2);
  connect_all(workers, 1);
  on_all(2, [&](int rank) {
    Worker& worker = *workers[static_cast<size_t>(rank)];
    for (int i = 0; i < 500; ++i) {
      if (rank == 1) { ASSERT_EQ(worker.inbox.next_message().data, payload(0, i, 8)); }
      ASSERT_TRUE(worker.instance->send_message(1 - rank, payload(0, i, 8)).ok());
      if (rank == 0) { ASSERT_EQ(worker.inbox.next_message().data, payload(0, i, 8)); }
    }
  });
}

TEST(HostMessages, BadDestinationsAndSizes) {
  Workers workers = make_workers(2);
  EXPECT_EQ(workers[0]->instance->send_message(1, {}).code, HVD_PEER_LOST);  // not connected
  connect_all(workers, 1);
  const std::vector<uint8_t> big((1 << 20) + 1);
  EXPECT_EQ(workers[0]->instance->send_message(0, {}).code, HVD_INVALID);
  EXPECT_EQ(workers[0]->instance->send_message(2, {}).code, HVD_INVALID);
  EXPECT_EQ(workers[0]->instance->send_message(-1, {}).code, HVD_INVALID);
  EXPECT_EQ(workers[0]->instance->send_message(1, big).code, HVD_INVALID);
}

TEST(HostMessages, ARankThatLeavesInPeaceIsNoFailure) {
  Workers workers = make_workers(2);
  connect_all(workers, 1);
  workers[0]->instance->disconnect();
  workers[0]->instance.reset();
  // The link's end has been seen when a later message is refused.
  const Time deadline = now() + kSoon;
  while (workers[1]->instance->send_message(0, {}).ok()) {
    ASSERT_LT(now(), deadline);
    std::this_thread::yield();
  }
  EXPECT_TRUE(workers[1]->inbox.losses().empty());
}

TEST(HostMessages, ARankThatGivesUpIsReportedWithoutBlame) {
  Workers workers = make_workers(2);
  connect_all(workers, 4);
  workers[0]->instance->abort(4);
  const Inbox::Loss loss = workers[1]->inbox.wait_failure();
  EXPECT_EQ(loss.generation, 4U);
  EXPECT_EQ(loss.peer, -1);
  EXPECT_NE(loss.text.find("rank 0 gave the generation up"), std::string::npos) << loss.text;
  const Status refused = workers[1]->instance->send_message(0, {});
  EXPECT_EQ(refused.code, HVD_PEER_LOST);
  EXPECT_EQ(refused.rank, -1) << refused.message;
}

// contract 11 and 13: who has no token is refused and disturbs nobody.
TEST(HostMessages, StrangersAreRefused) {
  Workers workers = make_workers(2);
  const std::vector<Member> members = members_of(workers);
  const auto& blob = members[0].offers[0].address;
  ASSERT_EQ(blob.size(), 48U);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  std::memcpy(&address.sin_port, &blob[6], 2);
  std::memcpy(&address.sin_addr, &blob[8], 4);
  std::vector<int> sockets;
  const auto stranger = [&](const std::vector<uint8_t>& says) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(send(fd, says.data(), says.size(), MSG_NOSIGNAL), static_cast<ssize_t>(says.size()));
    sockets.push_back(fd);
  };
  stranger({});
  stranger(payload(1, 2, 300));
  // A hello that is right in everything but the token: taken, it would stand in for rank 1.
  struct {
    uint32_t size = 248, kind = 1, magic = 0x47647668, version = 1;
    uint64_t generation = 1;
    int32_t rank = 1, ranks = 2;
    uint8_t rest[224] = {};
  } words;
  static_assert(sizeof(words) == 256);
  std::vector<uint8_t> hello(sizeof(words));
  std::memcpy(hello.data(), &words, sizeof(words));
  stranger(hello);
  on_all(2, [&](int rank) {
    const Status status =
        workers[static_cast<size_t>(rank)]->instance->connect(1, rank, members, seconds(10));
    ASSERT_TRUE(status.ok()) << status.message;
  });
  ASSERT_TRUE(workers[0]->instance->send_message(1, payload(0, 0, 10)).ok());
  EXPECT_EQ(workers[1]->inbox.next_message().data, payload(0, 0, 10));
  EXPECT_TRUE(workers[0]->inbox.losses().empty());
  for (const int fd : sockets) {
    char byte = 0;
    EXPECT_LE(recv(fd, &byte, 1, 0), 0);  // closed on them
    close(fd);
  }
}

}  // namespace
}  // namespace hvd::backend::test

// Strangers at every port that a worker listens on while its generation connects (contract 10, 11, 13, 17).
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "modules/cluster.h"

namespace hvd::backend::test {
namespace {

// Every address that a socket of this process listens at.
std::vector<sockaddr_in> listeners() {
  std::vector<sockaddr_in> found;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    const int fd = std::atoi(entry->d_name);
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) continue;
    sockaddr_in address{};
    length = sizeof(address);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0 && address.sin_family == AF_INET)
      found.push_back(address);
  }
  closedir(directory);
  return found;
}

enum class Does { kReset, kGarbage, kNothing, kHalfAHello };

class Scanner {
 public:
  explicit Scanner(Does does) : does_(does) {}
  ~Scanner() {
    for (const int fd : held_) close(fd);
  }
  void visit(const sockaddr_in& address) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      close(fd);
      return;
    }
    ++visits;
    std::vector<char> bytes(does_ == Does::kGarbage ? 5000 : 20, '\x5a');
    if (does_ == Does::kHalfAHello) {
      const uint32_t words[] = {64, 1, 0x4c647668, 3};
      std::memcpy(bytes.data(), words, sizeof(words));
    }
    if (does_ == Does::kGarbage || does_ == Does::kHalfAHello)
      (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (does_ == Does::kReset) {
      const linger reset{1, 0};
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
      close(fd);
    } else {
      held_.push_back(fd);
    }
  }
  int visits = 0;

 private:
  const Does does_;
  std::vector<int> held_;
};

sockaddr_in address_of(const Member& member) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  std::memcpy(&address.sin_port, &member.offers[0].address[6], 2);
  std::memcpy(&address.sin_addr, &member.offers[0].address[8], 4);
  return address;
}

void sums_are_right(const Workers& workers) {
  const int size = static_cast<int>(workers.size());
  on_all(size, [&](int rank) {
    std::vector<float> values(100000, static_cast<float>(rank + 1));
    Pending pending;
    hvd_backend_op op = pending.op(HVD_COLLECTIVE_ALLREDUCE, 1);
    op.dtype = HVD_DTYPE_FLOAT32;
    op.reduction = HVD_REDUCTION_SUM;
    op.count = values.size();
    op.input = op.output = values.data();
    const Status status = run(*workers[static_cast<size_t>(rank)]->instance, op, pending);
    ASSERT_TRUE(status.ok()) << status.message;
    ASSERT_EQ(values[99999], static_cast<float>(size * (size + 1) / 2));
  });
}

class Scan : public testing::TestWithParam<Does> {};

// One rank comes late, so that the others are connecting while the scanner goes from port to port, again and
// again.
TEST_P(Scan, OfEveryPortWhileConnectingDisturbsNobody) {
  constexpr int kSize = 4;
  Workers workers = make_workers(kSize);
  const std::vector<Member> members = members_of(workers);
  Scanner scanner(GetParam());
  std::atomic<int> connecting{0};
  std::promise<void> late;
  const std::shared_future<void> come(late.get_future());
  std::thread scan([&] {
    const Time deadline = now() + kSoon;
    while (connecting < kSize - 1 && now() < deadline) std::this_thread::yield();
    for (int round = 0; round < 10; ++round) {
      const std::vector<sockaddr_in> ports = listeners();
      EXPECT_EQ(ports.size(), static_cast<size_t>(kSize)) << "a worker listens where no token is asked for";
      for (const sockaddr_in& port : ports) scanner.visit(port);
    }
    late.set_value();
    for (int round = 0; round < 5; ++round) {
      for (const sockaddr_in& port : listeners()) scanner.visit(port);
    }
  });
  on_all(kSize, [&](int rank) {
    if (rank == 0) {
      come.wait();
    } else {
      ++connecting;
    }
    const Status status = workers[static_cast<size_t>(rank)]->instance->connect(1, rank, members, kSoon);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message;
  });
  scan.join();
  EXPECT_GE(scanner.visits, 10 * kSize);
  sums_are_right(workers);
  for (const auto& worker : workers) EXPECT_TRUE(worker->inbox.losses().empty());
}

INSTANTIATE_TEST_SUITE_P(Strangers, Scan,
                         testing::Values(Does::kReset, Does::kGarbage, Does::kNothing, Does::kHalfAHello));

// 300 connections that say nothing stand before the peers at every port, more than are kept; one rank is
// slow.
TEST(Strangers, IdleConnectionsByTheHundredsGiveWay) {
  constexpr int kSize = 3;
  constexpr int kIdle = 300;
  Workers workers = make_workers(kSize);
  const std::vector<Member> members = members_of(workers);
  Scanner idle(Does::kNothing);
  for (const Member& member : members) {
    for (int i = 0; i < kIdle; ++i) idle.visit(address_of(member));
  }
  ASSERT_EQ(idle.visits, kSize * kIdle);
  std::atomic<int> connecting{0};
  on_all(kSize, [&](int rank) {
    if (rank == 0) {
      // Those that dial it stand behind the idle ones, and more of these come behind them.
      const Time deadline = now() + kSoon;
      while (connecting < kSize - 1 && now() < deadline) std::this_thread::yield();
      for (int i = 0; i < kIdle; ++i) idle.visit(address_of(members[0]));
    } else {
      ++connecting;
    }
    const Status status = workers[static_cast<size_t>(rank)]->instance->connect(1, rank, members, kSoon);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message;
  });
  sums_are_right(workers);
}

// A peer's link that ends before it has greeted is dialed again: somebody may have crowded it out.
TEST(Strangers, ALinkThatIsClosedBeforeTheGreetingIsDialedAgain) {
  Workers workers = make_workers(2);
  std::vector<Member> members = members_of(workers);
  // Stands before rank 0's port: resets what comes first, and passes on the rest.
  const sockaddr_in real = address_of(members[0]);
  const int front = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(front, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(front, 100), 0);
  ASSERT_EQ(getsockname(front, reinterpret_cast<sockaddr*>(&address), &length), 0);
  std::vector<Member> seen = members;
  std::memcpy(&seen[0].offers[0].address[6], &address.sin_port, 2);
  std::atomic<bool> over{false};
  std::atomic<int> resets{0};
  std::vector<std::thread> pumps;
  std::vector<int> sockets;
  std::thread door([&] {
    while (true) {
      const int client = accept(front, nullptr, nullptr);
      if (client < 0 || over) {
        if (client >= 0) close(client);
        return;
      }
      if (resets < 12) {
        ++resets;
        const linger reset{1, 0};
        setsockopt(client, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
        close(client);
        continue;
      }
      const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(server, reinterpret_cast<const sockaddr*>(&real), sizeof(real)) != 0) {
        close(client);
        close(server);
        continue;
      }
      for (const auto& [from, to] : {std::pair(client, server), std::pair(server, client)}) {
        pumps.emplace_back([from = from, to = to] {
          std::vector<char> bytes(65536);
          for (ssize_t got = 0; (got = recv(from, bytes.data(), bytes.size(), 0)) > 0;) {
            for (ssize_t done = 0; done < got;) {
              const ssize_t sent =
                  send(to, bytes.data() + done, static_cast<size_t>(got - done), MSG_NOSIGNAL);
              if (sent <= 0) return;
              done += sent;
            }
          }
          shutdown(to, SHUT_WR);
        });
        sockets.push_back(from);
      }
    }
  });
  on_all(2, [&](int rank) {
    const Status status =
        workers[static_cast<size_t>(rank)]->instance->connect(1, rank, rank == 1 ? seen : members, kSoon);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message;
  });
  EXPECT_EQ(resets, 12);
  sums_are_right(workers);
  workers.clear();
  over = true;
  shutdown(front, SHUT_RDWR);
  door.join();
  for (std::thread& pump : pumps) pump.join();
  for (const int fd : sockets) close(fd);
  close(front);
}

}  // namespace
}  // namespace hvd::backend::test

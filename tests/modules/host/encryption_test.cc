// What someone in the middle of every connection sees and can do, with option encrypt on and off (contract
// 17).
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "modules/cluster.h"

namespace hvd::backend::test {
namespace {

// Stands before one rank's port, keeps what passes, and may change it.
class Middle {
 public:
  explicit Middle(Member& member) {
    std::memcpy(&real_.sin_port, &member.offers[0].address[6], 2);
    std::memcpy(&real_.sin_addr, &member.offers[0].address[8], 4);
    real_.sin_family = AF_INET;
    door_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr = real_.sin_addr;
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(door_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(door_, 100), 0);
    EXPECT_EQ(getsockname(door_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    std::memcpy(&member.offers[0].address[6], &address.sin_port, 2);
    thread_ = std::thread([this] { run(); });
  }
  ~Middle() {
    shutdown(door_, SHUT_RDWR);
    thread_.join();
    for (const int fd : sockets_) shutdown(fd, SHUT_RDWR);
    for (std::thread& pump : pumps_) pump.join();
    for (const int fd : sockets_) close(fd);
    close(door_);
  }
  /// From here on one bit of what passes is changed, in the middle of the first large piece.
  void spoil() { spoils_ = true; }
  bool spoiled() const { return spoiled_; }

  bool saw(const void* bytes, size_t size) {
    std::lock_guard lock(mutex_);
    const auto* first = static_cast<const char*>(bytes);
    return std::search(seen_.begin(), seen_.end(), first, first + size) != seen_.end();
  }
  size_t passed() {
    std::lock_guard lock(mutex_);
    return seen_.size();
  }

 private:
  void run() {
    while (true) {
      const int client = accept(door_, nullptr, nullptr);
      if (client < 0) return;
      const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      EXPECT_EQ(connect(server, reinterpret_cast<const sockaddr*>(&real_), sizeof(real_)), 0);
      sockets_.insert(sockets_.end(), {client, server});
      pumps_.emplace_back([this, client, server] { pump(client, server); });
      pumps_.emplace_back([this, client, server] { pump(server, client); });
    }
  }
  void pump(int from, int to) {
    std::vector<char> bytes(65536);
    for (ssize_t got = 0; (got = recv(from, bytes.data(), bytes.size(), 0)) > 0;) {
      {
        std::lock_guard lock(mutex_);
        seen_.insert(seen_.end(), bytes.begin(), bytes.begin() + got);
      }
      if (spoils_ && got > 10000 && !spoiled_.exchange(true)) bytes[static_cast<size_t>(got / 2)] ^= 0x10;
      for (ssize_t done = 0; done < got;) {
        const ssize_t sent = send(to, bytes.data() + done, static_cast<size_t>(got - done), MSG_NOSIGNAL);
        if (sent <= 0) break;
        done += sent;
      }
    }
    shutdown(to, SHUT_WR);
    shutdown(from, SHUT_RD);
  }

  sockaddr_in real_{};
  int door_ = -1;
  std::thread thread_;
  std::vector<std::thread> pumps_;
  std::vector<int> sockets_;
  std::mutex mutex_;
  std::vector<char> seen_;
  std::atomic<bool> spoils_{false}, spoiled_{false};
};

struct Watched {
  Watched(const std::string& encrypt, const std::string& other = "", const std::string& checksum = "0") {
    // Two addresses of the loopback are two hosts here.
    for (const char* ip : {"127.0.0.1", "127.0.0.2"}) {
      const bool second = ip[8] == '2';
      workers.push_back(std::make_unique<Worker>(std::vector<std::pair<std::string, std::string>>{
          {"interface", ip},
          {"encrypt", second && !other.empty() ? other : encrypt},
          {"checksum", checksum}}));
      Worker* self = workers.back().get();
      workers.back()->inbox.on_failure = [self](const Inbox::Loss& loss) {
        self->instance->abort(loss.generation);
      };
    }
    std::vector<Member> members = members_of(workers);
    std::vector<Member> seen = members;
    for (const Member& member : members)
      tokens.emplace_back(member.offers[0].address.begin() + 24, member.offers[0].address.end());
    middle = std::make_unique<Middle>(seen[0]);
    on_all(2, [&](int rank) {
      const Status status =
          workers[static_cast<size_t>(rank)]->instance->connect(1, rank, rank == 1 ? seen : members, kSoon);
      EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message;
    });
  }

  static std::vector<float> values_of(size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = 1.F + static_cast<float>(i % 4096) / 4096.F;
    return values;
  }

  /// The statuses and the results of an allreduce.
  std::vector<Status> allreduce(std::vector<std::vector<float>>* results, size_t count) {
    std::vector<Status> statuses(2);
    results->assign(2, values_of(count));
    on_all(2, [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      Pending pending;
      hvd_backend_op op = pending.op(HVD_COLLECTIVE_ALLREDUCE, sequence + 1);
      op.dtype = HVD_DTYPE_FLOAT32;
      op.reduction = HVD_REDUCTION_SUM;
      op.count = count;
      op.input = op.output = (*results)[r].data();
      statuses[r] = run(*workers[r]->instance, op, pending);
    });
    ++sequence;
    return statuses;
  }

  Workers workers;
  std::unique_ptr<Middle> middle;
  std::vector<std::vector<uint8_t>> tokens;
  uint64_t sequence = 0;
};

void works(Watched& watched) {
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{1} << 20, (size_t{3} << 20) + 7}) {
    std::vector<std::vector<float>> results;
    for (const Status& status : watched.allreduce(&results, count))
      ASSERT_TRUE(status.ok()) << status.message;
    const std::vector<float> values = Watched::values_of(count);
    for (const auto& result : results) {
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(result[i], 2 * values[i]) << i;
    }
  }
  const std::vector<uint8_t> message(300, 0x77);
  ASSERT_TRUE(watched.workers[0]->instance->send_message(1, message).ok());
  EXPECT_EQ(watched.workers[1]->inbox.next_message().data, message);
}

bool saw_values(Watched& watched) {
  const std::vector<float> values = Watched::values_of(4096);
  return watched.middle->saw(&values[17], 8 * sizeof(float));
}

TEST(Encryption, NoPayloadNoMessageAndNoTokenIsInTheClear) {
  Watched watched("on");
  works(watched);
  EXPECT_GT(watched.middle->passed(), size_t{16} << 20);
  EXPECT_FALSE(saw_values(watched));
  EXPECT_FALSE(watched.middle->saw(std::string(100, '\x77').data(), 100));
  for (const auto& token : watched.tokens) EXPECT_FALSE(watched.middle->saw(token.data(), token.size()));
}

TEST(Encryption, WithoutItTheTokensAreNotInTheClearEither) {
  Watched watched("off");
  works(watched);
  EXPECT_TRUE(saw_values(watched));  // so that the test above would see what it looks for
  for (const auto& token : watched.tokens) EXPECT_FALSE(watched.middle->saw(token.data(), token.size()));
}

TEST(Encryption, OfTwoRanksThatDifferTheStricterCounts) {
  Watched watched("off", "on");
  works(watched);
  EXPECT_FALSE(saw_values(watched));
}

// Altered bytes are a lost peer, never wrong numbers.
void refuses_changes(Watched& watched) {
  watched.middle->spoil();
  std::vector<std::vector<float>> results;
  const std::vector<Status> statuses = watched.allreduce(&results, size_t{4} << 20);
  EXPECT_TRUE(watched.middle->spoiled());
  const std::vector<float> values = Watched::values_of(size_t{4} << 20);
  int lost = 0;
  for (size_t rank = 0; rank < 2; ++rank) {
    lost += statuses[rank].code == HVD_PEER_LOST ? 1 : 0;
    if (!statuses[rank].ok()) continue;  // what this rank got may have been right, and then it is
    for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(results[rank][i], 2 * values[i]) << i;
  }
  EXPECT_GE(lost, 1);
}

TEST(Encryption, AlteredBytesEndTheConnection) {
  Watched watched("on");
  refuses_changes(watched);
}

TEST(Checksums, AlteredBytesEndTheConnection) {
  Watched watched("off", "", "1");
  works(watched);
  refuses_changes(watched);
}

TEST(Encryption, AnOptionOfAnotherValueIsRefused) {
  Inbox inbox;
  std::unique_ptr<Instance> instance;
  const Status status = open_module(module_under_test(), {{"interface", "127.0.0.1"}, {"encrypt", "yes"}},
                                    inbox.handlers(), &instance);
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_NE(status.message.find("option encrypt is 'yes': expected off, auto or on"), std::string::npos)
      << status.message;
}

}  // namespace
}  // namespace hvd::backend::test

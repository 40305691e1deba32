// Links of a process that has few descriptors, or none for a while (contract 12, 17).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <future>

#include "modules/kit/host_generation.h"
#include "modules/kit/links.h"
#include "modules/kit/lone_group.h"
#include "patience.h"

namespace hvdkit {
namespace {

const auto kPatience = hvd::test::patient(std::chrono::seconds(30));

/// RLIMIT_NOFILE, lowered so that this many more can be opened.
class FewDescriptors {
 public:
  explicit FewDescriptors(int more) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const Fd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    rlimit low = before_;
    low.rlim_cur = static_cast<rlim_t>(next.get() + more);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

/// At most `most` more descriptors of this process.
std::vector<Fd> take_descriptors(size_t most) {
  std::vector<Fd> taken;
  while (taken.size() < most) {
    Fd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0) break;
    taken.push_back(std::move(fd));
  }
  return taken;
}

Fd stranger() {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{std::chrono::duration_cast<std::chrono::seconds>(kPatience).count(), 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  return fd;
}
void connect_to(const Fd& fd, const Blob& blob) {
  socklen_t length = 0;
  const sockaddr_storage address = blob.sockaddr_of(&length);
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length), 0) << errno;
}

struct Rank {
  std::promise<std::string> log;
  std::atomic<bool> logged{false};
  Links links{"127.0.0.1", LinkHooks{[](int, const void*, size_t) {}, [](int, const std::string&) {},
                                     [this](const std::string& text) {
                                       if (!logged.exchange(true)) log.set_value(text);
                                     }}};
  std::string awaited_log() {
    auto line = log.get_future();
    return line.wait_for(kPatience) == std::future_status::ready ? line.get() : "nothing";
  }
};

struct Pair {
  Rank zero, one;
  std::vector<Blob> members{zero.links.blob(), one.links.blob()};

  std::future<void> meet(Rank& rank, int number) {
    return std::async(std::launch::async, [&, number] {
      rank.links.meet({7, number, members}, Clock::now() + kPatience);
    });
  }
};

TEST(FewDescriptors, StrangersThatSayNothingHoldAnEighth) {
  constexpr size_t kIdle = 260, kMore = 80, kLeft = 20;
  Pair pair;
  std::vector<Fd> idle;
  for (size_t i = 0; i < kIdle; ++i) idle.push_back(stranger());
  const FewDescriptors few(kMore);
  auto zero = pair.meet(pair.zero, 0);
  for (const Fd& fd : idle) connect_to(fd, pair.members[0]);
  EXPECT_EQ(pair.zero.awaited_log(), "a connection that did not greet made room for another");
  EXPECT_EQ(take_descriptors(kLeft).size(), kLeft);
  auto one = pair.meet(pair.one, 1);
  EXPECT_NO_THROW(zero.get());
  EXPECT_NO_THROW(one.get());
}

// One of this process's ranks dials when it has none, and the other's listener rests.
TEST(NoDescriptors, ARankIsDialedAndAcceptsOnceThereAreSome) {
  Pair pair;
  const Fd first = stranger(), second = stranger();
  auto zero = pair.meet(pair.zero, 0);
  connect_to(first, pair.members[0]);
  const LinkGroup group{7, 1, pair.members};
  const std::vector<uint8_t> hello = Handshake(group, 0, 0, {}).hello();
  ASSERT_EQ(::send(first.get(), hello.data(), hello.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(hello.size()));
  uint8_t answer[64];
  ASSERT_GT(::recv(first.get(), answer, sizeof(answer), 0), 0);  // it was accepted
  std::future<void> one;
  {
    const FewDescriptors few(40);
    std::vector<Fd> all = take_descriptors(SIZE_MAX);
    connect_to(second, pair.members[0]);
    while (::recv(first.get(), answer, sizeof(answer), 0) > 0) {}  // until it has given way
    std::vector<Fd> its = take_descriptors(SIZE_MAX);
    one = pair.meet(pair.one, 1);
    EXPECT_EQ(pair.one.awaited_log(), "rank 0 can't be dialed: Too many open files: dialed again");
  }
  EXPECT_NO_THROW(zero.get());
  EXPECT_NO_THROW(one.get());
}

TEST(NoDescriptors, AGenerationThatFindsNoneForItsLanesCanBeAborted) {
  hvd_backend_host host{};
  HostConfig config;
  config.ip = "127.0.0.1";
  HostGeneration generation("test", nullptr, config, host);
  const LoneGroup alone(generation);
  {
    const FewDescriptors few(1);
    const std::vector<Fd> all = take_descriptors(SIZE_MAX);
    EXPECT_THROW(generation.connect(alone.group), Failure);
  }
  generation.abort();
  generation.teardown();
}

}  // namespace
}  // namespace hvdkit

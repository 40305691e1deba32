// Whose connections hvd-pmix-server keeps.
#include "modules/mpi_elastic/pmix_server/peers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace hvd::pmix_server::test {
namespace {

constexpr uid_t kStranger = 65534;

class Peers : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    listener_ = socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (GetParam() == AF_INET) {
      auto& in = reinterpret_cast<sockaddr_in&>(address_);
      in.sin_family = AF_INET;
      in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      size_ = sizeof in;
    } else {
      auto& in = reinterpret_cast<sockaddr_in6&>(address_);
      in.sin6_family = AF_INET6;
      in.sin6_addr = in6addr_loopback;
      size_ = sizeof in;
    }
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address_), size_) != 0)
      GTEST_SKIP() << "no such loopback";
    ASSERT_EQ(listen(listener_, 8), 0);
    ASSERT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address_), &size_), 0);
  }
  void TearDown() override { close(listener_); }

  int connected() const {
    const int fd = socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address_), size_), 0);
    return fd;
  }

  int listener_ = -1;
  sockaddr_storage address_{};
  socklen_t size_ = 0;
};

TEST_P(Peers, OneOfThisUserStays) {
  const int theirs = connected();
  const int ours = accept(listener_, nullptr, nullptr);
  EXPECT_EQ(peer_user(ours), geteuid());
  EXPECT_EQ(peer_user(listener_), std::nullopt) << "nobody is at its other end";
  EXPECT_EQ(close_strangers(), 0);
  EXPECT_EQ(write(theirs, "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(ours, &byte, 1), 1);
  close(theirs);
  close(ours);
}

TEST_P(Peers, OneOfAnotherUserIsClosed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(kStranger) != 0) _exit(2);
    const int fd = connected();
    char byte = 0;
    _exit(read(fd, &byte, 1) == 0 ? 0 : 1);  // until it is closed
  }
  const int ours = accept(listener_, nullptr, nullptr);
  EXPECT_EQ(peer_user(ours), kStranger);
  EXPECT_EQ(close_strangers(), 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(ours);
}

INSTANTIATE_TEST_SUITE_P(Families, Peers, testing::Values(AF_INET, AF_INET6));

}  // namespace
}  // namespace hvd::pmix_server::test

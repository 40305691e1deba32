// A listener whose thread runs out of memory, at every allocation: those who come later are accepted.
#include <optional>

#include "starved.h"
#include "wire/strangers.h"

namespace hvd::test {
namespace {

using ListenerWithoutMemory = StrangersTest;

TEST_F(ListenerWithoutMemory, AcceptsThoseWhoComeLater) {
  constexpr size_t kMost = 1000;
  Server server({}, true);
  expect_good_client_works(server);
  bool failed = true;
  for (size_t at = 0; failed && at < kMost; ++at) {
    std::optional<Starved> starved;
    run_on(server.loop, [&] {
      starved.emplace(at);
      return true;
    });
    const auto client = connect(loop, server.endpoint());  // or it is refused
    failed = Starved::has_failed();
    run_on(server.loop, [&] {
      starved.reset();
      return true;
    });
    if (client->connected) client->close(Duration(0));
    expect_good_client_works(server);
    if (HasFatalFailure()) FAIL() << at;
  }
  EXPECT_FALSE(failed);
}

}  // namespace
}  // namespace hvd::test

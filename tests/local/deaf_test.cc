// A peer in shared memory that does not read what is sent to it.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "local/messages.h"
#include "support.h"

namespace hvd::local {
namespace {

std::shared_ptr<Box> private_box() {
  void* const memory = mmap(nullptr, sizeof(Box), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<Box*>(memory), [](Box* box) { munmap(box, sizeof(Box)); }};
}

struct Told {
  int32_t rank = -1;
  std::string text;
};

// A rank is lost by it, not the memory of others.
TEST(LocalMessages, APeerThatDoesNotReadIsLostAndNamed) {
  constexpr size_t kMost = size_t{4} << 20;
  test::Watched<Told> told;
  backend::HostHandlers handlers;
  handlers.failure = [&](uint64_t, int32_t rank, const std::string& text) {
    told.update([&](Told& t) { t = {rank, text}; });
  };
  Messages messages(1, {private_box(), private_box()}, {4, 7}, 0, handlers, std::make_shared<Logger>(),
                    kMost);
  std::thread thread([&] { messages.run(); });
  const std::vector<uint8_t> message(size_t{1} << 18);
  Status status;
  size_t taken = 0;
  for (; status.ok() && taken < 100; ++taken) status = messages.send(1, message);
  EXPECT_GE(taken, size_t{15});
  EXPECT_LT(taken, size_t{20});
  EXPECT_TRUE(told.wait([](const Told& t) { return t.rank == 7; }));
  const std::string text = "rank 7 does not read: ";
  EXPECT_EQ(told.get().text.substr(0, text.size()), text);
  status = messages.send(1, message);
  EXPECT_EQ(status.code, HVD_PEER_LOST);
  EXPECT_EQ(status.rank, 7);
  EXPECT_EQ(status.message, told.get().text);
  messages.stop(BoxState::kGaveUp);
  thread.join();
}

}  // namespace
}  // namespace hvd::local

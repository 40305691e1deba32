// A commit of shards for which one rank has no memory: no rank has it, and all are told the same.
#include <atomic>
#include <cstdlib>
#include <new>

#include "state/shard_histories.h"

namespace {

constexpr size_t kAligned = 64, kLarge = 700;  // copies of shards and sums, and nothing else
std::atomic<int> g_left{-1};                   // so many are given; negative: all

}  // namespace

void* operator new(size_t size, std::align_val_t alignment) {
  const auto a = static_cast<size_t>(alignment);
  if (a == kAligned && size >= kLarge && g_left >= 0 && g_left.fetch_sub(1) == 0) throw std::bad_alloc();
  void* const p = std::aligned_alloc(a, (size + a - 1) / a * a);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace hvd::state {
namespace {

struct ShardsMemory : ShardHistories {};

TEST_F(ShardsMemory, OneThatIsOutOfItFailsTheCommitOfAll) {
  for (const int32_t kept : kKept) {
    SCOPED_TRACE(kept);
    int refused = 0;
    for (int given = 0;; ++given) {
      SCOPED_TRACE(given);
      start(4, kept);
      ASSERT_TRUE(ok(sync()));
      g_left = given;
      const auto committed = commit(given % 2 == 1);
      const bool any = g_left < 0;
      g_left = -1;
      if (ok(committed)) {
        expect_step(1);
        if (!any) break;
        continue;  // it could do without
      }
      ++refused;
      int named = 0;
      for (const Status& status : committed) {
        EXPECT_EQ(status.code, HVD_INTERNAL) << status.message;
        if (status.message.find("out of memory") == std::string::npos) {
          EXPECT_NE(status.message.find("could not commit its part, so that no rank did"), std::string::npos)
              << status.message;
        } else {
          ++named;
        }
      }
      EXPECT_TRUE(named == 1 || named == 4) << text(committed);
      restore();
      expect_step(0);
      form();
      ASSERT_TRUE(ok(sync()));
      ASSERT_TRUE(ok(commit()));
      expect_step(1);
    }
    EXPECT_GT(refused, 4);
  }
}

}  // namespace
}  // namespace hvd::state

// Commits that are copied while the program goes on, and pieces that are not written again.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "state/fabric.h"
#include "state/message.h"
#include "state/objects.h"
#include "state/pieces.h"
#include "state/state.h"
#include "support.h"

namespace hvd::state {
namespace {

constexpr size_t kCount = 3 * kPiece / sizeof(float) + 1000;

struct Rank {
  explicit Rank(float step, const Settings& settings = {}) : state(nullptr, nullptr, nullptr, settings) {
    set(step);
    state.add_tensor("large", {large.data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(large.size())}});
    state.add_tensor("small", {small.data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(small.size())}});
    state.add_tensor("empty", {nullptr, HVD_DTYPE_FLOAT32, {0}});
    state.add_value("value", &value, sizeof(value));
    object.add_to(state, "object");
  }
  void set(float step) {
    for (size_t i = 0; i < large.size(); ++i) large[i] = step + static_cast<float>(i % 1000);
    std::fill(small.begin(), small.end(), step);
    value = step;
    object.bytes.assign(10, static_cast<uint8_t>(step));
  }
  void expect(float step) {
    for (size_t i = 0; i < large.size(); ++i) {
      ASSERT_EQ(large[i], step + static_cast<float>(i % 1000)) << i;
    }
    EXPECT_EQ(small, std::vector<float>(100, step));
    EXPECT_EQ(value, step);
    EXPECT_EQ(object.bytes, std::vector<uint8_t>(10, static_cast<uint8_t>(step)));
  }
  std::vector<float> large = std::vector<float>(kCount), small = std::vector<float>(100);
  float value = 0;
  TestObject object;
  State state;
};

TEST(Hidden, IsTheSameCommitAsOneThatIsNot) {
  Rank hidden(3), plain(3);
  ASSERT_TRUE(hidden.state.begin().ok());
  EXPECT_TRUE(hidden.state.begun());
  EXPECT_EQ(hidden.state.revision(), 1U);
  ASSERT_TRUE(hidden.state.end().ok());
  EXPECT_FALSE(hidden.state.begun());
  ASSERT_TRUE(plain.state.save().ok());
  EXPECT_EQ(hidden.state.summary().digest, plain.state.summary().digest);
  EXPECT_EQ(hidden.state.summary().revision, 1U);
  EXPECT_EQ(hidden.state.statistics().commits, 1U);
  hidden.set(4);
  ASSERT_TRUE(hidden.state.restore().ok());
  hidden.expect(3);
}

TEST(Hidden, ValuesAndObjectsMayChangeAtOnce) {
  Rank rank(1);
  ASSERT_TRUE(rank.state.begin().ok());
  rank.value = 7;
  rank.object.bytes = {9};
  ASSERT_TRUE(rank.state.end().ok());
  ASSERT_TRUE(rank.state.restore().ok());
  rank.expect(1);
}

TEST(Hidden, WhateverComesNextWaitsForIt) {
  for (const int next : {0, 1, 2, 3, 4, 5}) {
    std::vector<float> elsewhere(kCount);
    Rank rank(1);
    ASSERT_TRUE(rank.state.save().ok());
    rank.set(2);
    ASSERT_TRUE(rank.state.begin().ok());
    if (next == 0) { ASSERT_TRUE(rank.state.begin().ok()); }
    if (next == 1) { ASSERT_TRUE(rank.state.save().ok()); }
    if (next == 2) { ASSERT_TRUE(rank.state.settle().ok()); }
    if (next == 3) { rank.state.remove("empty"); }
    if (next == 5) {
      rank.state.set_data("large", elsewhere.data());
      std::fill(rank.large.begin(), rank.large.end(), -1.F);  // it is the program's again
      rank.large.swap(elsewhere);
    }
    ASSERT_TRUE(rank.state.settle().ok());
    EXPECT_EQ(rank.state.summary().revision, next < 2 ? 3U : 2U) << next;
    rank.set(5);
    ASSERT_TRUE(rank.state.restore().ok());
    rank.expect(2);
  }
}

TEST(Hidden, WhoWaitsMakesAllThatNobodyHasBegun) {
  const std::vector<uint8_t> from(5 * kPiece, 7);
  std::vector<uint8_t> to(from.size());
  Pieces pieces;
  pieces.fit(from.size());
  std::vector<PieceCopy> list;
  append_pieces(to.data(), from.data(), from.size(), &pieces, &list);
  SharedCopy copy(list);
  copy.help();
  EXPECT_EQ(to, from) << "before its thread has begun";
  EXPECT_EQ(copy.finish(), from.size());
}

// Pieces are made once each, by whoever comes first.
TEST(Hidden, WhoWaitsCopiesWithTheThread) {
  constexpr size_t kSize = 40 * kPiece + 100;
  std::vector<uint8_t> from(kSize), to(kSize);
  for (size_t i = 0; i < kSize; ++i) from[i] = static_cast<uint8_t>(i / kPiece + i);
  for (int round = 0; round < 20; ++round) {
    std::fill(to.begin(), to.end(), 0);
    Pieces pieces;
    pieces.fit(kSize);
    std::vector<PieceCopy> list;
    append_pieces(to.data(), from.data(), kSize, &pieces, &list);
    SharedCopy copy(list);
    uint64_t written = 0;
    std::thread thread([&] { written = copy.finish(); });
    copy.help();
    thread.join();
    copy.help();  // late
    EXPECT_EQ(written, kSize);
    EXPECT_EQ(to, from);
    EXPECT_EQ(pieces.content(), content_digest(from.data(), kSize));
  }
}

/// Memory whose first and last page can't be read. Who reads the first one waits until somebody reads the
/// last one; then both can be read.
class Gates {
 public:
  explicit Gates(size_t size) : memory_(size) {
    g_memory = memory_.data();
    g_size = size;
    g_open = g_passed = false;
    protect(PROT_NONE);
    struct sigaction action = {};
    action.sa_sigaction = &faulted;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, &before_);
  }
  Gates(const Gates&) = delete;
  Gates& operator=(const Gates&) = delete;
  ~Gates() {
    protect(PROT_READ | PROT_WRITE);
    sigaction(SIGSEGV, &before_, nullptr);
  }
  uint8_t* data() { return memory_.data(); }
  /// Whether there were two readers.
  static bool passed() { return g_passed; }

 private:
  static constexpr size_t kPage = 65536;  // no machine has larger ones

  /// As far as it goes, of whole pages.
  struct Mapping {
    explicit Mapping(size_t s)
        : size(s), address(mmap(nullptr, s, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
      if (address == MAP_FAILED) throw std::bad_alloc();
    }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping() { munmap(address, size); }
    uint8_t* data() const { return static_cast<uint8_t*>(address); }
    const size_t size;
    void* const address;
  };
  static void protect(int rights) {
    mprotect(g_memory, kPage, rights);
    mprotect(g_memory + g_size - kPage, kPage, rights);
  }
  static void open() {
    protect(PROT_READ | PROT_WRITE);
    g_open = true;
  }
  /// In the thread that reads.
  static void faulted(int, siginfo_t* info, void*) {
    const auto* const at = static_cast<const uint8_t*>(info->si_addr);
    if (at >= g_memory + g_size - kPage && at < g_memory + g_size) {
      g_passed = true;
      return open();
    }
    if (at < g_memory || at >= g_memory + kPage) {  // a fault like any other
      signal(SIGSEGV, SIG_DFL);
      return;
    }
    const Time deadline = now() + test::kDeadline;
    const timespec moment = {0, 1000000};
    while (!g_open && now() < deadline) nanosleep(&moment, nullptr);
    if (!g_open) open();
  }

  static inline uint8_t* g_memory;
  static inline size_t g_size;
  static inline std::atomic<bool> g_open, g_passed;
  Mapping memory_;
  struct sigaction before_ = {};
};

TEST(Hidden, WhoWaitsForItsEndHelpsWithIt) {
  constexpr size_t kSize = 4 * kPiece;
  State state(nullptr);
  Gates gates(kSize);
  state.add_tensor("t", {gates.data(), HVD_DTYPE_UINT8, {kSize}});
  ASSERT_TRUE(state.begin().ok());
  ASSERT_TRUE(state.end().ok());
  EXPECT_TRUE(Gates::passed()) << "its thread made all of it";
}

TEST(Hidden, MemoryThatIsLentUntilTheEndIsCopiedMeanwhile) {
  static constexpr size_t kSize = 4 * kPiece;
  static uint8_t* memory;
  State state(nullptr);
  Gates gates(kSize);
  memory = gates.data();
  const auto save = [](void*, hvd_write_fn, void* sink) {
    const void* const data = memory;
    return lend(sink, &data, &kSize, 1, Lent::kUntilEnd);
  };
  const auto load = [](void*, const void*, size_t) { return 0; };
  state.add_object("o", Callback<hvd_save_fn>(save, nullptr, nullptr),
                   Callback<hvd_load_fn>(load, nullptr, nullptr));
  ASSERT_TRUE(state.begin().ok());
  ASSERT_TRUE(state.end().ok());
  EXPECT_TRUE(Gates::passed()) << "it was copied when begin() returned";
}

// All of a large commit, however early it is waited for.
TEST(Hidden, ALargeCommitThatIsWaitedForAtOnceIsWhole) {
  State state(nullptr);
  std::vector<uint64_t> tensor(size_t{5} << 20);
  state.add_tensor("t", {tensor.data(), HVD_DTYPE_UINT64, {std::ssize(tensor)}});
  for (uint64_t step = 1; step < 8; ++step) {
    for (size_t i = 0; i < tensor.size(); ++i) tensor[i] = i * step;
    ASSERT_TRUE(state.begin().ok());
    ASSERT_TRUE(state.end().ok());
    std::fill(tensor.begin(), tensor.end(), 0);
    ASSERT_TRUE(state.restore().ok());
    for (size_t i = 0; i < tensor.size(); ++i) ASSERT_EQ(tensor[i], i * step);
  }
}

TEST(Hidden, AFailingCallbackLeavesTheCommitBefore) {
  Rank rank(1);
  ASSERT_TRUE(rank.state.begin().ok());
  ASSERT_TRUE(rank.state.end().ok());
  rank.set(2);
  rank.object.save_code = 3;
  EXPECT_EQ(rank.state.begin().code, HVD_CALLBACK_FAILED);
  EXPECT_EQ(rank.state.end().code, HVD_INVALID) << "none is under way";
  EXPECT_EQ(rank.state.revision(), 1U);
  ASSERT_TRUE(rank.state.restore().ok());
  rank.expect(1);
}

TEST(Hidden, AWriteMeanwhileIsNamedWhereThatIsChecked) {
  Rank rank(1, {true});
  ASSERT_TRUE(rank.state.begin().ok());
  rank.value = 2;  // allowed
  ASSERT_TRUE(rank.state.end().ok());
  rank.set(2);
  ASSERT_TRUE(rank.state.begin().ok());
  ASSERT_TRUE(rank.state.settle().ok());  // all is copied: the write below races with nothing
  ASSERT_TRUE(rank.state.begin().ok());
  while (rank.state.summary().revision != 3) std::this_thread::yield();
  rank.small[50] = 77;
  const Status status = rank.state.end();
  EXPECT_EQ(status.code, HVD_INVALID);
  EXPECT_TRUE(says(status.message, {"'small'", "float32[100]", "begin of commit 3"}));
}

TEST(Hidden, NewestWinsWhereverACommitHadArrived) {  // contract 5: one commit or the other on all ranks
  Rank a(1), b(1), c(1);
  std::vector<Rank*> ranks{&a, &b, &c};
  const auto sync = [&] {
    Fabric fabric(3);
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        const Status status =
            ranks[static_cast<size_t>(r)]->state.sync(fabric.engine(r), r, 3, {}, seconds(60), nullptr);
        EXPECT_TRUE(status.ok()) << status.message;
      });
    }
    for (auto& thread : threads) thread.join();
  };
  sync();
  for (Rank* rank : ranks) {
    ASSERT_TRUE(rank->state.begin().ok());
    ASSERT_TRUE(rank->state.end().ok());
    rank->set(2);
  }
  ASSERT_TRUE(b.state.begin().ok());  // the others have learnt of a loss before theirs
  for (Rank* rank : ranks) ASSERT_TRUE(rank->state.restore().ok());
  a.expect(1);
  b.expect(2);
  sync();
  for (Rank* rank : ranks) {
    rank->expect(2);
    EXPECT_EQ(rank->state.revision(), 2U);
    rank->set(9);
    ASSERT_TRUE(rank->state.restore().ok());
    rank->expect(2);
  }
}

TEST(Incremental, OnlyPiecesThatChangedAreWritten) {
  Rank rank(1);
  auto written = [&, before = uint64_t{0}]() mutable {
    EXPECT_TRUE(rank.state.save().ok());
    const uint64_t now = rank.state.statistics().written_bytes, bytes = now - before;
    before = now;
    return bytes;
  };
  const uint64_t all = (kCount + 100 + 1) * sizeof(float);
  EXPECT_EQ(written(), all);
  EXPECT_EQ(written(), all) << "it is not known yet that they stay the same";
  EXPECT_EQ(written(), 0U);
  rank.large[kPiece / sizeof(float)] += 1;  // the first of the second piece
  EXPECT_EQ(written(), kPiece);
  const float kept = rank.large[kPiece / sizeof(float)];
  rank.large[kPiece / sizeof(float)] = 0;
  ASSERT_TRUE(rank.state.restore().ok());
  EXPECT_EQ(rank.large[kPiece / sizeof(float)], kept);
}

TEST(Incremental, DigestsAndBytesAreThoseOfAFullCommitWhateverChanges) {
  Rank rank(1);
  uint64_t seed = 1;
  for (int round = 0; round < 40; ++round) {
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    if (seed >> 62U != 0) rank.large[(seed >> 20U) % kCount] += 1;
    if (seed >> 61U == 5) rank.small[0] += 1;
    ASSERT_TRUE(((seed >> 33U) % 2 == 0 ? rank.state.begin() : rank.state.save()).ok());
    ASSERT_TRUE(rank.state.settle().ok());
    Rank fresh(1);
    fresh.large = rank.large;
    fresh.small = rank.small;
    State same(nullptr);
    same.add_tensor("large", {fresh.large.data(), HVD_DTYPE_FLOAT32, {static_cast<int64_t>(kCount)}});
    same.add_tensor("small", {fresh.small.data(), HVD_DTYPE_FLOAT32, {100}});
    same.add_tensor("empty", {nullptr, HVD_DTYPE_FLOAT32, {0}});
    same.add_value("value", &fresh.value, sizeof(float));
    fresh.object.add_to(same, "object");
    ASSERT_TRUE(same.save().ok());
    ASSERT_EQ(same.summary().digest, rank.state.summary().digest) << round;
    std::fill(rank.large.begin(), rank.large.end(), 0.F);
    ASSERT_TRUE(rank.state.restore().ok());
    ASSERT_TRUE(rank.large == fresh.large) << round;
  }
}

TEST(Incremental, LargeCopiesByAllCoresAreTheSame) {
  const size_t size = (48 << 20) + 12345;
  std::vector<uint8_t> from(size), to(size), plain(size);
  for (size_t i = 0; i < size; i += 7) from[i] = static_cast<uint8_t>(i * 31);
  Pieces pieces;
  pieces.fit(size);
  std::vector<PieceCopy> list;
  append_pieces(to.data(), from.data(), size, &pieces, &list);
  EXPECT_EQ(copy_pieces(list, true), size);
  EXPECT_TRUE(to == from);
  EXPECT_EQ(pieces.content(), content_digest(from.data(), size));
  list.clear();
  append_pieces(plain.data(), from.data(), size, nullptr, &list);
  EXPECT_EQ(copy_pieces(list, true), size);
  EXPECT_TRUE(plain == from);
}

}  // namespace
}  // namespace hvd::state

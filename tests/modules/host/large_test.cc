// More than 4 GiB in one tensor: no length or offset may be 32 bits wide anywhere.
#include <cstring>
#include <fstream>

#include "modules/cluster.h"

namespace hvd::backend::test {
namespace {

constexpr size_t kBlock = size_t{1} << 20;
constexpr size_t kBytes = (size_t{4} << 30) + 3 * kBlock + 17;
constexpr size_t kNeeded = size_t{14} << 30;
const Duration kLong = hvd::test::patient(std::chrono::seconds(500));  // a deadline

// A block 4 GiB further on has another value.
uint8_t value_of(int rank, size_t block) {
  return static_cast<uint8_t>(block * 37 + (block >> 12) * 101 + static_cast<size_t>(rank) * 59);
}

template <class Function>
void for_each_block(Function function) {
  for (size_t first = 0; first < kBytes; first += kBlock) {
    function(first / kBlock, first, std::min(kBlock, kBytes - first));
  }
}

size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  size_t kib = 0;
  for (std::string unit; file >> key >> kib; std::getline(file, unit)) {
    if (key == "MemAvailable:") return kib << 10;
  }
  return 0;
}

class HostLarge : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer takes a multiple of the memory";
#endif
    if (const size_t available = available_memory(); available < kNeeded) {
      GTEST_SKIP() << "MemAvailable is " << (available >> 20) << " MiB, two tensors of 4 GiB need "
                   << (kNeeded >> 20);
    }
    workers_ = make_workers(2);
    connect_all(workers_, 1);
    for (auto& tensor : tensors_) tensor.reset(new uint8_t[kBytes]);
  }

  void fill(int rank) {
    for_each_block([&](size_t block, size_t first, size_t length) {
      std::memset(&tensors_[static_cast<size_t>(rank)][first], value_of(rank, block), length);
    });
  }

  // The op on both ranks, in place, and then value(block) everywhere.
  template <class Value>
  void run_and_check(hvd_collective collective, Value value) {
    std::vector<Pending> pending(2);
    for (size_t rank = 0; rank < 2; ++rank) {
      hvd_backend_op op = pending[rank].op(collective, 1);
      op.dtype = HVD_DTYPE_UINT8;
      op.reduction = HVD_REDUCTION_SUM;
      op.count = kBytes;
      op.input = op.output = tensors_[rank].get();
      const Status status = workers_[rank]->instance->submit(op);
      ASSERT_TRUE(status.ok()) << status.message;
    }
    for (Pending& p : pending) {
      const Status status = p.wait(kLong);
      ASSERT_TRUE(status.ok()) << status.message;
    }
    for (const auto& tensor : tensors_) {
      for_each_block([&](size_t block, size_t first, size_t length) {
        const uint8_t* at = &tensor[first];
        ASSERT_TRUE(at[0] == value(block) && std::memcmp(at, at + 1, length - 1) == 0)
            << "at byte " << first << ": " << int{at[0]} << " instead of " << int{value(block)};
      });
    }
  }

  Workers workers_;
  std::unique_ptr<uint8_t[]> tensors_[2];  // freed with each test
};

TEST_F(HostLarge, BroadcastOfMoreThan4GiB) {
  fill(0);
  std::memset(tensors_[1].get(), 0xee, kBytes);
  run_and_check(HVD_COLLECTIVE_BROADCAST, [](size_t block) { return value_of(0, block); });
}

TEST_F(HostLarge, AllreduceOfMoreThan4GiB) {
  fill(0);
  fill(1);
  run_and_check(HVD_COLLECTIVE_ALLREDUCE,
                [](size_t block) { return static_cast<uint8_t>(value_of(0, block) + value_of(1, block)); });
}

}  // namespace
}  // namespace hvd::backend::test

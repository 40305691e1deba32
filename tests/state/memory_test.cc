// Memory that other processes map: who may, what they see, and for how long its owner leaves it alone.
#include "state/memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

namespace hvd::state {
namespace {

constexpr size_t kSize = (5 << 20) + 123;

Memory written(uint8_t value) {
  Memory memory = Memory::shared(kSize);
  EXPECT_EQ(memory.size(), kSize);
  std::memset(memory.data(), value, memory.size());
  return memory;
}

bool holds(const Memory& memory, size_t size, uint8_t value) {
  return memory.size() >= size &&
         std::all_of(memory.data(), memory.data() + size, [&](uint8_t byte) { return byte == value; });
}

TEST(SharedMemory, OutlivesItsOwner) {
  Memory memory = written(7);
  const MemoryPlace place = memory.place();
  EXPECT_TRUE(memory.is_shared());
  Memory mapped = Memory::map(place);
  EXPECT_TRUE(mapped.is_mapped());
  EXPECT_FALSE(mapped.is_shared());
  std::memset(memory.data(), 8, memory.size());
  memory = {};
  EXPECT_TRUE(holds(mapped, kSize, 8));
  EXPECT_EQ(Memory::map(place).size(), 0U) << "its descriptor is closed";
  EXPECT_TRUE(holds(Memory::map(mapped.place()), kSize, 8)) << "who maps it hands it on";
}

TEST(SharedMemory, IsInUseForAsLongAsSomebodyMapsIt) {
  const Memory memory = written(1);
  EXPECT_FALSE(memory.in_use());
  Memory first = Memory::map(memory.place()), second = Memory::map(first.place());
  EXPECT_TRUE(memory.in_use());
  first = {};
  EXPECT_TRUE(memory.in_use());
  second = {};
  EXPECT_FALSE(memory.in_use());
  EXPECT_FALSE(Memory(kSize).in_use());
  EXPECT_FALSE(Memory().in_use());
}

TEST(SharedMemory, IsInUseNoMoreWhenTheOtherProcessIsGone) {
  const Memory memory = written(9);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Memory mapped = Memory::map(memory.place());
    const char said = holds(mapped, kSize, 9) ? 'y' : 'n';
    if (write(ready[1], &said, 1) == 1) pause();
    _exit(1);
  }
  char said = 0;
  EXPECT_EQ(read(ready[0], &said, 1), 1);
  EXPECT_EQ(said, 'y');
  EXPECT_TRUE(memory.in_use());
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_FALSE(memory.in_use());
  close(ready[0]);
  close(ready[1]);
}

TEST(SharedMemory, KeepsWhatItHoldsWhenItsSizeChanges) {
  Memory memory = written(3);
  for (const size_t size : {kSize * 3, kSize / 2, kSize, size_t{1}}) {
    const size_t before = std::min(memory.size(), size);
    ASSERT_TRUE(memory.remake(size));
    EXPECT_EQ(memory.size(), size);
    EXPECT_TRUE(holds(memory, before, 3));
    std::memset(memory.data(), 3, size);
    const Memory mapped = Memory::map(memory.place());
    EXPECT_TRUE(holds(mapped, size, 3));
  }
  EXPECT_FALSE(memory.remake(0));
}

TEST(SharedMemory, OfAnotherNameIsNotMapped) {
  const Memory memory = written(5);
  const MemoryPlace right = memory.place();
  ASSERT_GT(Memory::map(right).size(), 0U);
  const auto refused = [](MemoryPlace place) { return Memory::map(place).size() == 0; };
  MemoryPlace place = right;
  place.token.low ^= 1;
  EXPECT_TRUE(refused(place));
  place = right;
  ++place.inode;
  EXPECT_TRUE(refused(place));
  for (const uint64_t size : {uint64_t{0}, right.size * 2, uint64_t{1} << 62, UINT64_MAX}) {
    place = right;
    place.size = size;
    EXPECT_TRUE(refused(place)) << size;
  }
  for (const uint64_t number : {uint64_t{0}, uint64_t{1}, uint64_t{INT32_MAX} + 1, UINT64_MAX}) {
    place = right;
    place.process = number;
    EXPECT_TRUE(refused(place)) << number;
    if (number == 0) continue;
    place = right;
    place.descriptor = number;
    EXPECT_TRUE(refused(place)) << number;
  }
  EXPECT_TRUE(refused({}));
  EXPECT_EQ(Memory(kSize).place().process, 0U);
}

// A reader behind the end of a file that got shorter would be ended by SIGBUS.
TEST(SharedMemory, NeverGetsShorterWhatOthersMap) {
  const Memory memory = written(7);
  const MemoryPlace right = memory.place();
  EXPECT_EQ(ftruncate(static_cast<int>(right.descriptor), 0), -1);
  EXPECT_EQ(errno, EPERM);
  // The same from somebody who keeps that to himself.
  const int own = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  struct stat known {};
  ASSERT_EQ(fstat(static_cast<int>(right.descriptor), &known), 0);
  ASSERT_EQ(ftruncate(own, known.st_size), 0);
  ASSERT_EQ(pwrite(own, &right.token, sizeof(right.token), 0), static_cast<ssize_t>(sizeof(right.token)));
  ASSERT_EQ(fstat(own, &known), 0);
  MemoryPlace place = right;
  place.descriptor = static_cast<uint64_t>(own);
  place.inode = known.st_ino;
  EXPECT_EQ(Memory::map(place).size(), 0U);
  ASSERT_EQ(fcntl(own, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_EQ(Memory::map(place).size(), kSize);
  close(own);
}

TEST(SharedMemory, IsNotThereWhereFilesMayNotBeSoLong) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  Memory memory = written(2);
  rlimit little = before;
  little.rlim_cur = 4 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  EXPECT_EQ(Memory::shared(kSize).size(), 0U);
  EXPECT_FALSE(memory.remake(kSize * 2)) << "and no signal came";
  EXPECT_TRUE(holds(memory, kSize, 2));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(Memory::shared(0).size(), 0U);
  EXPECT_EQ(Memory::shared(SIZE_MAX - 5).size(), 0U);
}

}  // namespace
}  // namespace hvd::state

// A box is reached through its owner's descriptor, and only if it is the one that was announced.
#include "local/box.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "local/bell.h"

namespace hvd::local {
namespace {

struct Opened {
  Opening opening;
  std::shared_ptr<Box> memory;
  std::string reason;
};

Opened open_one(pid_t process, int descriptor, const Token& token) {
  Opened opened{};
  opened.opening = open_box(process, descriptor, token, 1, &opened.memory, &opened.reason);
  EXPECT_EQ(opened.reason.empty(), opened.opening == Opening::kDone);
  EXPECT_EQ(opened.memory == nullptr, opened.opening != Opening::kDone);
  return opened;
}

std::unique_ptr<OwnBox> make_box() {
  std::unique_ptr<OwnBox> box;
  const Status status = OwnBox::create(&box);
  EXPECT_TRUE(status.ok()) << status.message;
  return box;
}

TEST(LocalBox, IsSharedAndOutlivesItsDescriptor) {
  std::unique_ptr<OwnBox> own = make_box();
  const Opened peer = open_one(getpid(), own->descriptor(), own->token());
  ASSERT_EQ(peer.opening, Opening::kDone);
  EXPECT_NE(peer.memory.get(), own->memory().get());
  own->memory()->segments[3][17] = 5;
  EXPECT_EQ(peer.memory->segments[3][17], 5);
  peer.memory->rings[1].written.value = 77;
  EXPECT_EQ(own->memory()->rings[1].written.value.load(), 77U);
  peer.memory->bells.exec = kAsleep;
  EXPECT_EQ(own->memory()->bells.exec.load(), kAsleep);
  own.reset();
  EXPECT_EQ(peer.memory->segments[3][17], 5);
  peer.memory->rings[1].data[6] = 6;
  EXPECT_EQ(peer.memory->rings[1].data[6], 6);
}

// What a peer need not write it can't: a stray write ends the one who strays.
TEST(LocalBox, APeerWritesTheBellsAndItsOwnRingAlone) {
  const std::unique_ptr<OwnBox> own = make_box();
  const Opened peer = open_one(getpid(), own->descriptor(), own->token());
  ASSERT_EQ(peer.opening, Opening::kDone);
  Box* const box = peer.memory.get();
  std::set<std::pair<uintptr_t, uintptr_t>> writable;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char rights[5] = "";
    ASSERT_EQ(sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, rights), 3);
    const auto first = reinterpret_cast<uintptr_t>(box);
    if (begin >= first && begin < first + sizeof(Box) && rights[1] == 'w') writable.emplace(begin, end);
  }
  const auto range = [](auto& part) {
    const auto begin = reinterpret_cast<uintptr_t>(&part);
    return std::pair(begin, begin + sizeof(part));
  };
  EXPECT_EQ(writable, (std::set<std::pair<uintptr_t, uintptr_t>>{range(box->bells), range(box->rings[1])}));
}

TEST(LocalBox, CanNeitherShrinkNorGrow) {
  const std::unique_ptr<OwnBox> own = make_box();
  EXPECT_NE(ftruncate(own->descriptor(), 4096), 0);
  EXPECT_NE(ftruncate(own->descriptor(), sizeof(Box) * 2), 0);
}

TEST(LocalBox, AnotherTokenOrNumberOrProcessIsGone) {
  const std::unique_ptr<OwnBox> own = make_box();
  Token other = own->token();
  other[1] ^= 1;
  EXPECT_EQ(open_one(getpid(), own->descriptor(), other).opening, Opening::kGone);
  EXPECT_EQ(open_one(getpid(), 12345, own->token()).opening, Opening::kGone);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_GT(child, 0);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(open_one(child, own->descriptor(), own->token()).opening, Opening::kGone)
      << "dead, not waited for";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(open_one(child, own->descriptor(), own->token()).opening, Opening::kGone);
}

// A descriptor's number in a blob may lead to anything.
TEST(LocalBox, WhatIsNoSealedMemoryOfTheRightSizeIsNotMapped) {
  const Token token{1, 2};
  int descriptors[2];
  ASSERT_EQ(pipe(descriptors), 0);
  EXPECT_EQ(open_one(getpid(), descriptors[0], token).opening, Opening::kGone);
  close(descriptors[0]);
  close(descriptors[1]);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, descriptors), 0);
  EXPECT_EQ(open_one(getpid(), descriptors[0], token).opening, Opening::kGone);
  close(descriptors[0]);
  close(descriptors[1]);
  for (const bool sealed : {false, true}) {
    for (const size_t size : {size_t{0}, size_t{4096}, sizeof(Box) - 1, sizeof(Box), sizeof(Box) + 4096}) {
      const int file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
      ASSERT_EQ(ftruncate(file, static_cast<off_t>(size)), 0);
      if (sealed) { ASSERT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0); }
      EXPECT_EQ(open_one(getpid(), file, token).opening, Opening::kGone) << size;
      close(file);
    }
  }
  // Everything as it must be, but not sealed: its owner could take it away under us.
  const int file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(file, sizeof(Box)), 0);
  const std::unique_ptr<OwnBox> own = make_box();
  ASSERT_EQ(pwrite(file, own->memory().get(), 4096, 0), 4096);
  EXPECT_EQ(open_one(getpid(), file, own->token()).opening, Opening::kGone);
  ASSERT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_EQ(open_one(getpid(), file, own->token()).opening, Opening::kDone);
  close(file);
}

TEST(LocalBox, LeavesNothingBehind) {
  const auto entries = [](const char* directory) {
    size_t count = 0;
    std::error_code code;
    for (std::filesystem::directory_iterator entry(directory, code), end; !code && entry != end;
         entry.increment(code)) {
      if (entry->path().filename().string().find("hvd") != std::string::npos) ++count;
    }
    return count;
  };
  const size_t before = entries("/dev/shm");
  const std::unique_ptr<OwnBox> own = make_box();
  EXPECT_EQ(entries("/dev/shm"), before);
}

}  // namespace
}  // namespace hvd::local

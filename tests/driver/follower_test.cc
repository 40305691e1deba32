// A journal that is copied piece by piece, and what a driver answers to who follows it.
#include "driver/follower.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/status.h"

namespace hvd::driver {
namespace {

TEST(JournalCopy, SaysAgainWhatItWasTold) {
  const JournalPart asked = read_question(question_for({7, 1, 300, 0, {}}));
  EXPECT_EQ(asked.term, 7u);
  EXPECT_EQ(asked.file, 1u);
  EXPECT_EQ(asked.offset, 300u);
  const JournalPart told = read_answer("7 1 300 305\na\nb c");
  EXPECT_EQ(told.offset, 300u);
  EXPECT_EQ(told.size, 305u);
  EXPECT_EQ(told.bytes, "a\nb c");
  for (const char* bad : {"", "1", "1 2", "1 2 3 4", "1 2 x", "-1 2 3", "1 2 3 ", "1 2 99999999999999999999"})
    EXPECT_THROW(read_question(bad), Error) << bad;
  for (const char* bad : {"", "\n", "1 2 3\nx", "1 2 3 4 5\nx"}) EXPECT_THROW(read_answer(bad), Error) << bad;
}

TEST(JournalCopy, IsWholeOnceAllPartsAreThere) {
  JournalCopy copy;
  EXPECT_TRUE(copy.take({1, 0, 0, 6, "abc"}));
  EXPECT_EQ(copy.term(), 0u);
  EXPECT_EQ(copy.wanted().offset, 3u);
  EXPECT_FALSE(copy.take({1, 0, 3, 6, "def"}));
  EXPECT_EQ(copy.term(), 1u);
  EXPECT_EQ(copy.bytes(), "abcdef");
  EXPECT_FALSE(copy.take({1, 0, 6, 6, ""}));  // a sign of life
  EXPECT_FALSE(copy.take({1, 0, 6, 8, "gh"}));
  EXPECT_EQ(copy.bytes(), "abcdefgh");
  // It begins anew: what is there tells until all of the next is.
  EXPECT_TRUE(copy.take({1, 1, 0, 4, "AB"}));
  EXPECT_EQ(copy.bytes(), "abcdefgh");
  EXPECT_FALSE(copy.take({1, 1, 2, 4, "CD"}));
  EXPECT_EQ(copy.bytes(), "ABCD");
  EXPECT_FALSE(copy.take({2, 0, 0, 1, "x"}));
  EXPECT_EQ(copy.term(), 2u);
}

TEST(JournalCopy, TakesNothingThatDoesNotFit) {
  JournalCopy copy;
  copy.take({5, 0, 0, 3, "abc"});
  EXPECT_THROW(copy.take({4, 0, 0, 1, "x"}), Error) << "an older driver";
  EXPECT_THROW(copy.take({5, 0, 2, 4, "xy"}), Error) << "not what was asked for";
  EXPECT_THROW(copy.take({5, 1, 3, 4, "x"}), Error) << "the middle of another file";
  EXPECT_THROW(copy.take({5, 0, 3, 3, "x"}), Error) << "more than there is";
  EXPECT_THROW(copy.take({0, 0, 0, 0, ""}), Error);
  EXPECT_THROW(copy.take({~uint64_t{0}, 0, 0, 1, "x"}), Error) << "there would be no next term";
  EXPECT_THROW(copy.take({6, 0, 0, ~uint64_t{0}, "x"}), Error) << "without end";
  EXPECT_EQ(copy.bytes(), "abc");
}

TEST(JournalOfADriver, IsReadFromWhereItWasLeftAndAnewAfterItBeganAnew) {
  std::string directory = testing::TempDir() + "hvd-follow-XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  {
    JournalFile file(directory, 3, std::make_shared<Logger>());
    JournalCopy copy;
    const auto take = [&] {
      std::string bytes;
      JournalPart part = file.read(copy.wanted(), &bytes);
      part.bytes = bytes;
      copy.take(part);
      return bytes.size();
    };
    file.write({membership::TermBegan{3, "job", "here"}, membership::KnownJob{}});
    EXPECT_GT(take(), 0u);
    EXPECT_EQ(take(), 0u);
    EXPECT_EQ(copy.term(), 3u);
    file.write({membership::WorkerDone{9}});
    EXPECT_LT(take(), 40u) << "only what is new";
    EXPECT_EQ(membership::read_journal(copy.bytes()).job.done, std::vector<uint64_t>{9});
    membership::KnownJob large;
    large.last_loss = std::string(3 << 20, 'x');
    for (int i = 0; i < 12; ++i) file.write({large});  // until it begins anew
    while (take() > 0) {}
    EXPECT_EQ(membership::read_journal(copy.bytes()).job.last_loss.size(), size_t{3} << 20);
    EXPECT_EQ(membership::read_journal(copy.bytes()).began.job, "job");

    const std::string other = directory + "/other";
    JournalFile::save(other, copy.term(), copy.bytes());
    const JournalFile::Found found = JournalFile::find(other);
    EXPECT_EQ(found.term, 3u);
    EXPECT_FALSE(found.driver_lives);
    EXPECT_EQ(found.journal.job.last_loss.size(), size_t{3} << 20);
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace hvd::driver

// When a driver that stands by takes over: by what it sees of the journal, and by its own time alone
// (contract 14).
#include "driver/standby.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "patience.h"

namespace hvd::driver {
namespace {

const Time kStart{seconds(1000)};
const Duration kSilence = seconds(10), kSettle = seconds(1);

TEST(Vigil, ADriverWhoseLockIsFreeIsGoneAfterAMoment) {
  Vigil vigil(kSilence, kSettle);
  EXPECT_FALSE(vigil.see({1, true, 5}, kStart));
  EXPECT_FALSE(vigil.see({1, false, 5}, kStart + seconds(0.1)));  // its machine may start another one
  EXPECT_FALSE(vigil.see({1, false, 5}, kStart + seconds(1.0)));
  EXPECT_TRUE(vigil.see({1, false, 5}, kStart + seconds(1.1)));
}

TEST(Vigil, AnotherDriverOnItsMachineIsFaster) {
  Vigil vigil(kSilence, kSettle);
  vigil.see({1, true, 5}, kStart);
  vigil.see({1, false, 5}, kStart + seconds(0.1));
  EXPECT_FALSE(vigil.see({2, true, 6}, kStart + seconds(0.5)));
  EXPECT_FALSE(vigil.see({2, true, 7}, kStart + seconds(9)));
  EXPECT_FALSE(vigil.see({2, false, 7}, kStart + seconds(9.1)));
  EXPECT_TRUE(vigil.see({2, false, 7}, kStart + seconds(10.1)));
}

TEST(Vigil, TheLockOfTheDriverBeforeSaysNothingOfTheNext) {
  Vigil vigil(kSilence, kSettle);
  vigil.see({1, true, 5}, kStart);
  vigil.see({1, false, 5}, kStart + seconds(0.1));
  // Another machine's, whose lock can't be seen here.
  EXPECT_FALSE(vigil.see({2, false, 6}, kStart + seconds(0.5)));
  EXPECT_FALSE(vigil.see({2, false, 7}, kStart + seconds(2)));
  EXPECT_FALSE(vigil.see({2, false, 8}, kStart + seconds(9)));
}

TEST(Vigil, ADriverThatStandsStillIsGoneAfterItsSilence) {
  Vigil vigil(kSilence, kSettle);
  EXPECT_FALSE(vigil.see({1, true, 5}, kStart));
  EXPECT_FALSE(vigil.see({1, true, 6}, kStart + seconds(8)));
  EXPECT_FALSE(vigil.see({1, true, 6}, kStart + seconds(17)));
  EXPECT_TRUE(vigil.see({1, true, 6}, kStart + seconds(18)));
}

TEST(Vigil, ALockThatWasNeverSeenSaysNothing) {
  Vigil vigil(kSilence, kSettle);
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(vigil.see({1, false, 5 + static_cast<uint64_t>(i)}, kStart + seconds(i)));
  }
  EXPECT_FALSE(vigil.see({1, false, 104}, kStart + seconds(108)));
  EXPECT_TRUE(vigil.see({1, false, 104}, kStart + seconds(109)));
}

TEST(Vigil, OneThatSleptItselfLooksFirst) {
  Vigil vigil(kSilence, kSettle);
  vigil.see({1, true, 5}, kStart);
  EXPECT_FALSE(vigil.see({1, true, 700}, kStart + seconds(3600)));
}

TEST(Vigil, WithoutAJournalThereIsNothingToTakeOver) {
  Vigil vigil(kSilence, kSettle);
  EXPECT_FALSE(vigil.see({}, kStart));
  EXPECT_FALSE(vigil.see({}, kStart + seconds(3600)));
}

class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string path = testing::TempDir() + "hvd-standby-XXXXXX";
    ASSERT_NE(::mkdtemp(path.data()), nullptr);
    directory = path;
  }
  void TearDown() override { std::filesystem::remove_all(directory); }
  std::unique_ptr<JournalFile> driver(uint64_t term) {
    auto file = std::make_unique<JournalFile>(directory, term, logger);
    file->write({membership::TermBegan{term, "job", ""}, membership::KnownJob{}});
    return file;
  }
  std::string directory;
  const LoggerPtr logger = std::make_shared<Logger>();
};

TEST_F(Files, ALookTellsLifeAndBeats) {
  EXPECT_EQ(JournalFile::look(directory).term, 0u);
  auto first = driver(1);
  const JournalFile::Look before = JournalFile::look(directory);
  EXPECT_EQ(before.term, 1u);
  EXPECT_TRUE(before.locked);
  first->beat();
  const Time deadline = now() + seconds(20);
  while (JournalFile::look(directory).stamp == before.stamp) {
    ASSERT_LT(now(), deadline) << "a beat that nobody sees";
    std::this_thread::yield();
  }
  first.reset();
  EXPECT_FALSE(JournalFile::look(directory).locked);
}

TEST_F(Files, OneTermHasOneDriver) {
  auto first = driver(1);
  EXPECT_THROW(driver(1), Error);
  EXPECT_FALSE(first->superseded());
  auto second = driver(2);
  EXPECT_TRUE(first->superseded());
  EXPECT_FALSE(second->superseded());
  // Later ones remove what is older than the one before them.
  auto third = driver(3);
  JournalFile::remove_older(directory, 3);
  auto fourth = driver(4);
  JournalFile::remove_older(directory, 4);
  EXPECT_TRUE(first->superseded());
  EXPECT_FALSE(fourth->superseded());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 2);
}

TEST_F(Files, AJournalThatIsRemovedHasNoSuccessor) {
  auto first = driver(1);
  std::filesystem::remove_all(directory);
  EXPECT_FALSE(first->superseded());
}

TEST_F(Files, AJobThatHasEndedNeedsNoStandby) {
  auto first = driver(1);
  first->write({membership::JobFinished{{true, "all 2 workers are done"}}});
  try {
    Standby(Standby::directory(directory), seconds(10), seconds(10), logger).wait();
    FAIL() << "it took a job over that has ended";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_CLOSED);
    EXPECT_NE(std::string(error.what()).find("all 2 workers are done"), std::string::npos);
  }
}

TEST_F(Files, NoJobAtAllIsNotWaitedForForever) {
  try {
    Standby(Standby::directory(directory), seconds(10), Duration(0), logger).wait();
    FAIL() << "it took nothing over";
  } catch (const Error& error) { EXPECT_EQ(error.status().code, HVD_UNAVAILABLE); }
}

TEST_F(Files, ALookThatTookLongIsAsOldAsItsBeginning) {  // contract 19
  auto first = driver(1);
  const Duration silence = test::patient(std::chrono::milliseconds(1500));
  int looks = 0;
  std::function<void()> stop;
  Standby::Watched watched = Standby::directory(directory);
  // The second one tells of the moment before this process was held up; then the driver's beats are seen.
  watched.look = [&] {
    if (++looks == 2) std::this_thread::sleep_for(silence + std::chrono::milliseconds(100));
    if (looks == 4) stop();
    return JournalFile::Look{1, true, looks < 3 ? 5u : 5u + static_cast<uint64_t>(looks)};
  };
  Standby standby(watched, silence, seconds(10), logger);
  stop = [&] { standby.stop("seen enough"); };
  EXPECT_THROW(standby.wait(), Error) << "it took over from a driver that lives";
  EXPECT_EQ(looks, 4);
}

TEST_F(Files, ItIsToldToEnd) {
  auto first = driver(1);
  Standby standby(Standby::directory(directory), seconds(1000), seconds(10), logger);
  std::thread other([&] { standby.stop("stopped by SIGTERM"); });
  EXPECT_THROW(standby.wait(), Error);
  other.join();
}

}  // namespace
}  // namespace hvd::driver

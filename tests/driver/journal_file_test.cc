// The journal's directory: what may be there, and what is not believed.
#include "driver/journal_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/status.h"
#include "loop_support.h"

namespace hvd::driver {
namespace {

namespace fs = std::filesystem;
constexpr char kFirst[] = "journal.0000000000000001";

struct Journals : ::testing::Test {
  test::Folder folder;
  static void write_journal(const std::string& directory, uint64_t term) {
    JournalFile file(directory, term, std::make_shared<Logger>());
    file.write({membership::TermBegan{term, "j", "127.0.0.1:1"}});
  }
};

TEST_F(Journals, TheNewestIsFound) {
  write_journal(folder.path(""), 1);
  write_journal(folder.path(""), 3);
  const JournalFile::Found found = JournalFile::find(folder.path(""));
  EXPECT_EQ(found.term, 3u);
  EXPECT_EQ(found.journal.began.term, 3u);
  EXPECT_FALSE(found.driver_lives);
}

TEST_F(Journals, ADirectoryThatIsMadeIsTheUsersAlone) {
  const std::string made = folder.path("made");
  JournalFile::find(made);
  struct stat info {};
  ASSERT_EQ(::stat(made.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(Journals, ADirectoryThatAllUsersShareIsRefused) {
  const std::string shared = folder.path("shared");
  fs::create_directory(shared);
  ASSERT_EQ(::chmod(shared.c_str(), 01777), 0);
  try {
    JournalFile::find(shared);
    FAIL() << "it was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.status().code, HVD_INVALID);
    EXPECT_NE(error.status().message.find(shared), std::string::npos) << error.status().message;
  }
  // A volume of a container is open to all, and all are one user.
  ASSERT_EQ(::chmod(shared.c_str(), 0777), 0);
  EXPECT_EQ(JournalFile::find(shared).term, 0u);
}

TEST_F(Journals, LinksAreNotFollowed) {
  const std::string other = folder.path("other"), ours = folder.path("ours");
  fs::create_directory(other);
  fs::create_directory(ours);
  write_journal(other, 1);
  fs::create_symlink(other + "/" + kFirst, ours + "/" + kFirst);
  const JournalFile::Found found = JournalFile::find(ours);
  EXPECT_EQ(found.term, 1u) << "the number is taken";
  EXPECT_EQ(found.journal.began.term, 0u) << "and what it leads to is not believed";
}

// A next driver would take workers that it does not tell of for strangers.
TEST_F(Journals, OneThatCouldNotBeWrittenIsNotWhole) {
  membership::KnownJob job;
  job.told = true;
  {
    JournalFile file(folder.path(""), 1, std::make_shared<Logger>());
    file.write({membership::TermBegan{1, "j", ""}, job});
    ASSERT_TRUE(JournalFile::find(folder.path("")).journal.job.told);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit full{fs::file_size(folder.path(kFirst)), before.rlim_max};
    auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
    file.write({membership::WorkerSynced{7}});
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
  }
  const JournalFile::Found found = JournalFile::find(folder.path(""));
  EXPECT_EQ(found.term, 1u);
  EXPECT_EQ(found.journal.began.job, "j");
  EXPECT_FALSE(found.journal.job.told);
}

TEST_F(Journals, APipeHoldsNobodyUp) {
  ASSERT_EQ(::mkfifo(folder.path(kFirst).c_str(), 0600), 0);
  EXPECT_EQ(JournalFile::find(folder.path("")).journal.began.term, 0u);
}

}  // namespace
}  // namespace hvd::driver

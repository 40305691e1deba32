// Where a worker's output goes when somebody else may write to the directory for it.
#include "launch/worker_output.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/status.h"
#include "loop_support.h"

namespace hvd::launch {
namespace {

namespace fs = std::filesystem;

class WorkerOutputTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder.path("out")); }

  /// Worker 4 prints a line, in a job whose output goes to `directory`. "": it can be made, else why not.
  std::string print(const std::string& directory) {
    try {
      WorkerOutput worker(output, directory, "a", 1, 4);
      worker.feed(false, "said\n");
      worker.feed(true, "bad\n");
      worker.finish();
    } catch (const Error& error) { return error.what(); }
    output.reset();  // all is written
    return "";
  }

  test::Folder folder;
  test::RecordedLog log;
  std::shared_ptr<OutputThread> output =
      std::make_shared<OutputThread>([](const OutputLine&) {}, log.logger());
};

TEST_F(WorkerOutputTest, TheDirectoryItselfMayBeALink) {
  fs::create_directory_symlink(folder.path("out"), folder.path("link"));
  EXPECT_EQ(print(folder.path("link")), "");
  EXPECT_EQ(test::read_file(folder.path("out/a.1.4/stdout")), "said\n");
  EXPECT_EQ(test::read_file(folder.path("out/a.1.4/stderr")), "bad\n");
}

TEST_F(WorkerOutputTest, IsAppendedToThatOfADriverBefore) {
  fs::create_directory(folder.path("out/a.1.4"));
  std::ofstream(folder.path("out/a.1.4/stdout")) << "before\n";
  EXPECT_EQ(print(folder.path("out")), "");
  EXPECT_EQ(test::read_file(folder.path("out/a.1.4/stdout")), "before\nsaid\n");
}

TEST_F(WorkerOutputTest, AFolderThatIsALinkIsNotFollowed) {
  fs::create_directory(folder.path("others"));
  fs::create_directory_symlink(folder.path("others"), folder.path("out/a.1.4"));
  const std::string why = print(folder.path("out"));
  EXPECT_NE(why.find("out/a.1.4 can't be made: there is a link or a file of that name"), std::string::npos)
      << why;
  EXPECT_TRUE(fs::is_empty(folder.path("others")));
}

TEST_F(WorkerOutputTest, AFolderOfSomebodyElseIsNotUsed) {
  constexpr uid_t kSomebody = 12345;
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make one";
  fs::create_directory(folder.path("out/a.1.4"));
  ASSERT_EQ(::chown(folder.path("out/a.1.4").c_str(), kSomebody, kSomebody), 0);
  const std::string why = print(folder.path("out"));
  EXPECT_NE(why.find("out/a.1.4 can't be made: it is user 12345's"), std::string::npos) << why;
  EXPECT_TRUE(fs::is_empty(folder.path("out/a.1.4")));
}

TEST_F(WorkerOutputTest, AFileWithASecondNameIsNotWritten) {
  fs::create_directory(folder.path("out/a.1.4"));
  std::ofstream(folder.path("kept")) << "kept";
  fs::create_hard_link(folder.path("kept"), folder.path("out/a.1.4/stdout"));
  EXPECT_EQ(print(folder.path("out")), "");
  EXPECT_EQ(test::read_file(folder.path("kept")), "kept");
  EXPECT_EQ(test::read_file(folder.path("out/a.1.4/stderr")), "bad\n") << "the other one is as ever";
  EXPECT_NE(log.text().find("out/a.1.4/stdout can't be opened: it has a second name"), std::string::npos)
      << log.text();
}

TEST_F(WorkerOutputTest, OnceMadeItsFolderIsTheSameUnderAnyName) {
  fs::create_directory(folder.path("others"));
  {
    WorkerOutput worker(output, folder.path("out"), "a", 1, 4);
    fs::rename(folder.path("out/a.1.4"), folder.path("out/moved"));
    fs::create_directory_symlink(folder.path("others"), folder.path("out/a.1.4"));
    worker.feed(false, "said\n");
    worker.finish();
  }
  output.reset();
  EXPECT_TRUE(fs::is_empty(folder.path("others")));
  EXPECT_EQ(test::read_file(folder.path("out/moved/stdout")), "said\n");
}

}  // namespace
}  // namespace hvd::launch

// Paths and directories without std::filesystem.
#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/own_directory.h"

namespace hvd {
namespace {

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string name = testing::TempDir() + "hvd-file-XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) directory_ = name;
  }
  ~FileTest() override { remove_directory(directory_); }
  std::string directory_;
};

TEST(PathTest, IsOfADirectoryAndAName) {
  EXPECT_EQ(path_in("/a", "b"), "/a/b");
  EXPECT_EQ(path_in("/a/", "b"), "/a/b");
  EXPECT_EQ(path_in("/", "b"), "/b");
  EXPECT_EQ(path_in("", "b"), "b") << "of the current directory";
}

TEST(PathTest, OwnDirectoryIsThatOfThisProgram) {
  const std::string program = real_path("/proc/self/exe");
  EXPECT_EQ(own_directory() + "/", program.substr(0, program.rfind('/') + 1));
}

TEST_F(FileTest, NamesComeInOrder) {
  ASSERT_EQ(make_directories(path_in(directory_, "b")), 0);
  ASSERT_EQ(make_directories(path_in(directory_, "a/c")), 0);
  ASSERT_EQ(::symlink("nowhere", path_in(directory_, ".link").c_str()), 0);
  EXPECT_EQ(names_in(directory_), (std::vector<std::string>{".link", "a", "b"}));
}

TEST_F(FileTest, WhatIsNoDirectoryHasNoNames) {
  EXPECT_TRUE(names_in(path_in(directory_, "none")).empty());
  EXPECT_TRUE(names_in("/proc/self/exe").empty());
}

TEST_F(FileTest, DirectoriesAreMadeOnlyWhereTheyCanBe) {
  EXPECT_EQ(make_directories(path_in(directory_, "a/b/c")), 0);
  EXPECT_EQ(make_directories(path_in(directory_, "a/b/c")), 0) << "it is there";
  EXPECT_EQ(make_directories("/proc/self/exe/a"), ENOTDIR);
}

}  // namespace
}  // namespace hvd

// The spool's file: in order, bounded, and gone with the agent.
#include "agent/spool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace hvd::agent {
namespace {

namespace fs = std::filesystem;

class FileSpool : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(directory.data()), nullptr); }
  void TearDown() override {
    EXPECT_TRUE(fs::is_empty(directory)) << "a file has a name";
    fs::remove_all(directory);
  }
  std::string directory = testing::TempDir() + "spool.XXXXXX";
};

TEST_F(FileSpool, GivesBackInOrderAndForgetsWhatWasTaken) {
  const auto spool = make_file_spool(directory, 100);
  std::string text;
  for (int round = 0; round < 3; ++round) {  // the room is there again each time
    EXPECT_TRUE(spool->push(std::string(60, 'a')));
    EXPECT_TRUE(spool->push(std::string(40, 'b')));
    EXPECT_FALSE(spool->push("c"));
    EXPECT_NE(spool->why().find("agent_spool_bytes is 100"), std::string::npos) << spool->why();
    EXPECT_TRUE(spool->pop(50, &text));
    EXPECT_EQ(text, std::string(50, 'a'));
    EXPECT_TRUE(spool->pop(50, &text));
    EXPECT_EQ(text, std::string(10, 'a').append(40, 'b'));
  }
}

TEST_F(FileSpool, WhatIsNotThereIsSaid) {
  const auto spool = make_file_spool(directory, 100);
  std::string text;
  EXPECT_TRUE(spool->push("abc"));
  EXPECT_FALSE(spool->pop(4, &text));
  EXPECT_NE(spool->why().find("can't be read"), std::string::npos) << spool->why();
  EXPECT_TRUE(spool->push("abc"));
  spool->clear();
  EXPECT_TRUE(spool->push("def"));
  EXPECT_TRUE(spool->pop(3, &text));
  EXPECT_EQ(text, "def");
}

TEST_F(FileSpool, ADirectoryThatIsNotThereIsNamed) {
  const auto spool = make_file_spool(directory + "/none", 100);
  EXPECT_FALSE(spool->push("abc"));
  EXPECT_NE(spool->why().find(directory + "/none can't be made: No such file"), std::string::npos)
      << spool->why();
  EXPECT_EQ(make_file_spool(directory, 0), nullptr);
}

}  // namespace
}  // namespace hvd::agent

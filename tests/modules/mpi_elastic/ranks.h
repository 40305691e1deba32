// Ranks of the MPI module as processes of this program, started by no launcher: MPI allows one instance a
// process, and what is tested is that processes die. The parent stands in for the driver: an ompi-server, the
// generations' members, and the keys they tell each other.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "patience.h"

namespace hvd::backend::test {

/// The module that is tested: HVD_TEST_MPI, else mpi_elastic.
std::string module_name();

inline const auto kPatience = hvd::test::patient(std::chrono::seconds(60));  // a deadline, never a duration

constexpr const char* kAnswer = "= ";  // what a rank's own lines begin with

struct RankOptions {
  bool elastic = true;
  size_t segment_bytes = size_t{1} << 20;
};

/// A folder, with a server through which ranks meet as long as it lives: that of the Open MPI which the
/// module is built with.
class MpiJob {
 public:
  MpiJob();
  ~MpiJob();
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;
  const std::filesystem::path& folder() const { return folder_; }
  const std::string& server_variable() const { return variable_; }
  const std::string& server_uri() const { return uri_; }
  uint64_t next_worker() const { return ++worker_; }
  uint64_t next_generation() { return ++generation_; }

 private:
  std::filesystem::path folder_;
  std::string variable_ = "OMPI_MCA_pmix_server_uri", uri_;
  int server_ = -1, output_ = -1;
  uint64_t generation_ = 0;
  mutable uint64_t worker_ = 0;
};

/// A rank: takes one command a line and answers with one line.
class MpiRank {
 public:
  explicit MpiRank(const MpiJob& job, const RankOptions& options = {});
  ~MpiRank();  // kills it
  MpiRank(const MpiRank&) = delete;
  MpiRank& operator=(const MpiRank&) = delete;

  void tell(const std::string& command);
  /// The next line; "(nothing)" at the deadline, "(gone)" when the process has ended.
  std::string hear(std::chrono::milliseconds patience = kPatience);
  std::string ask(const std::string& command) {
    tell(command);
    return hear();
  }
  void kill();
  int wait();  // its status
  int pid() const { return pid_; }

 private:
  int pid_ = -1, in_ = -1, out_ = -1;
  std::string heard_;
};

using Ranks = std::vector<MpiRank*>;
using RankPtr = std::unique_ptr<MpiRank>;

/// Asks all at once and waits for all; the answers by rank.
std::vector<std::string> ask_all(const Ranks& ranks, const std::string& command);
void expect_all(const Ranks& ranks, const std::string& command, const std::string& answer = "ok");

/// Forms the job's next generation of these and gives the answers to connect.
std::vector<std::string> form(MpiJob& job, const Ranks& ranks, int timeout_ms = 30000);
void must_form(MpiJob& job, const Ranks& ranks);

std::vector<RankPtr> start(const MpiJob& job, int count, const RankOptions& options = {});
Ranks all_of(const std::vector<RankPtr>& ranks);

/// What this MPI says, once, if it can't join processes that were started apart; "" if it can.
const std::string& why_apart();

/// Tests of processes that were started apart: skipped where they can't come together.
class StartedApart : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_apart().empty()) GTEST_SKIP() << why_apart();
  }
};

/// The rank's own side: to be called first in main. True if this process is one; *ret_status is main's
/// result.
bool run_as_rank(int argc, char** argv, int* ret_status);

}  // namespace hvd::backend::test

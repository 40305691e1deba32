// hvdrun's command line.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace hvd::cli {

constexpr int kUsage = 2;  // exit status: the command line makes no sense

struct Arguments {
  std::vector<std::pair<std::string, std::string>> options;  // of hvd_options
  std::vector<std::string> environment;
  std::vector<std::string> command;
  std::vector<std::string> timelines;  // to be merged instead of a job: the new file, then the others
  std::string http;                    // where the status is served; "": nowhere
  bool verbose = false, status_line = true;
  bool join = false, driver = false, standby = false;
  long nodes = 1;           // at most, as torchrun counts them
  bool may_be_kept = true;  // unless --journal is off
  bool check_build = false;
};

/// Fills in `arguments`; an exit status if hvdrun is to end now, having said why, else -1.
int parse(int argc, char** argv, Arguments* arguments);

}  // namespace hvd::cli

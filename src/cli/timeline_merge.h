// Timelines of several workers as one trace: docs/timeline.md.
#pragma once

#include <string>
#include <vector>

namespace hvd::cli {

struct Merged {
  size_t lanes = 0, events = 0;
  std::vector<std::string> notes;  // what was left out, a sentence each
};

/// Reads files that libhvd wrote, also cut off ones and merged ones, and writes `out`: one lane a worker, in
/// the order of their ranks, with the clocks of the hosts brought into line. Memory does not grow with the
/// files. Throws std::runtime_error.
Merged merge_timelines(const std::string& out, const std::vector<std::string>& in);

}  // namespace hvd::cli

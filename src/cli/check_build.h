// hvdrun --check-build: which backends there are, and why some can't be used.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace hvd::cli {

/// Prints one backend after the other. settings: of hvd_options. The exit status: 0 if one of them can serve
/// a job of several workers, 2 for settings that are none, else 1.
int check_build(const std::vector<std::pair<std::string, std::string>>& settings);

}  // namespace hvd::cli

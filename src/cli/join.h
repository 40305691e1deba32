// hvdrun --join: an agent, which runs workers on this host for a driver elsewhere.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/console.h"

namespace hvd::cli {

/// Runs until the job is over; the exit status. No command: the driver's.
int join(const std::vector<std::pair<std::string, std::string>>& settings,
         const std::vector<std::string>& command, const std::vector<std::string>& environment, bool verbose,
         ErrorOutput* errors);

/// The file of this program, or "".
std::string own_path();

}  // namespace hvd::cli

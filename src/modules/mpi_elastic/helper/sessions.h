// What Open MPI's processes leave running beside them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace hvdmpi::helper {

/// The helper processes (orted) that Open MPI 4 started for processes with session directories in
/// `directory`. They end by themselves when their process does.
std::vector<pid_t> daemons_in(const std::string& directory);

/// Waits until they are gone, and ends those that stay longer than `patience`.
void end_daemons(const std::string& directory, std::chrono::milliseconds patience);

}  // namespace hvdmpi::helper

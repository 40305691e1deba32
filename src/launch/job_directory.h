// Directories of the job's own, in which Open MPI leaves what it leaves: so that the end of the job removes exactly
// that and nothing else. Used by the driver and, if the driver is killed, by hvd-guard: standard library alone.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace hvd::launch {

/// Makes `<base>/hvd-job.XXXXXX`, for this user alone. Empty, and errno, if it can't be made.
std::string make_job_directory(const std::string& base);

/// The helper processes (orted) that Open MPI's singletons started with session directories in `directory`. They
/// end by themselves when their worker does.
std::vector<pid_t> daemons_in(const std::string& directory);

/// Waits until the daemons are gone, ends those that stay longer than `patience`, and removes the directories with
/// all that is in them; links are removed and not followed. Only what make_job_directory may have made is
/// touched. Returns what could not be removed.
std::vector<std::string> remove_job_directories(const std::vector<std::string>& directories,
                                                std::chrono::milliseconds patience);

}  // namespace hvd::launch

// Directories of the job's own, in which others leave what they leave: so that the end of the job removes
// exactly that and nothing else. Used by the driver and, if the driver is killed, by hvd-guard: standard
// library alone.
#pragma once

#include <string>
#include <vector>

namespace hvd::launch {

/// Makes `<base>/hvd-job.XXXXXX`, for this user alone. Empty, and errno, if it can't be made.
std::string make_job_directory(const std::string& base);

/// Removes the directories with all that is in them; links are removed and not followed. Only what
/// make_job_directory may have made is touched. Returns what could not be removed.
std::vector<std::string> remove_job_directories(const std::vector<std::string>& directories);

}  // namespace hvd::launch

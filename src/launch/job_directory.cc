// Makes and removes the directories of a job.
#include "launch/job_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "base/file.h"

namespace hvd::launch {
namespace {

constexpr std::string_view kPrefix = "hvd-job.";
constexpr unsigned kStepUs = 10000;
constexpr int kAttempts = 100;

/// Ours by name and owner, and no link.
bool may_be_removed(const std::string& directory) {
  const size_t slash = directory.rfind('/');
  if (slash == std::string::npos || slash == 0) return false;
  if (std::string_view(directory).substr(slash + 1, kPrefix.size()) != kPrefix) return false;
  struct stat info {};
  return ::lstat(directory.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid();
}

bool remove(const std::string& directory) {
  // Somebody on its way out removes its part at the same time: what is gone meanwhile is no failure.
  for (int i = 0; i < kAttempts && may_be_removed(directory); ++i) {
    if (remove_directory(directory) == 0) break;
    ::usleep(kStepUs);
  }
  struct stat info {};
  return ::lstat(directory.c_str(), &info) != 0 && errno == ENOENT;
}

}  // namespace

std::string make_job_directory(const std::string& base) {
  std::string path = base + "/" + std::string(kPrefix) + "XXXXXX";
  return ::mkdtemp(path.data()) == nullptr ? std::string() : path;
}

std::vector<std::string> remove_job_directories(const std::vector<std::string>& directories) {
  std::vector<std::string> left;
  for (const std::string& directory : directories) {
    if (may_be_removed(directory) && !remove(directory)) left.push_back(directory);
  }
  return left;
}

}  // namespace hvd::launch

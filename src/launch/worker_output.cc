// Lines and files of a worker's output.
#include "launch/worker_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file.h"
#include "base/status.h"

namespace hvd::launch {
namespace {

/// The user names the directory, which may be a link, and may be one that others write to. What is below it
/// is not believed: a link, or a folder of somebody else's with links in it, would lead to any file.
Descriptor folder_in(const std::string& directory, const std::string& name) {
  const std::string path = path_in(directory, name);
  const auto failed = [&](const char* why) {
    return Error(HVD_UNAVAILABLE, fmt::format("output directory {} can't be made: {}", path, why));
  };
  if (const int error = make_directories(directory); error != 0) throw failed(std::strerror(error));
  const Descriptor above(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (above.get() < 0) throw failed(std::strerror(errno));
  const bool fresh = ::mkdirat(above.get(), name.c_str(), 0777) == 0;
  if (!fresh && errno != EEXIST) throw failed(std::strerror(errno));
  Descriptor folder(::openat(above.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.get() < 0) throw failed("there is a link or a file of that name: expected a directory");
  struct stat info {
  }, parent{};
  if (::fstat(folder.get(), &info) != 0 || ::fstat(above.get(), &parent) != 0)
    throw failed(std::strerror(errno));
  // The directory's own user can change all in it anyway. On NFS both may be nobody's, since root made them.
  if (!fresh && info.st_uid != ::geteuid() && info.st_uid != 0 && info.st_uid != parent.st_uid)
    throw failed(fmt::format("it is user {}'s: expected none, or one of this user", info.st_uid).c_str());
  return folder;
}

}  // namespace

WorkerOutput::WorkerOutput(std::shared_ptr<OutputThread> output, const std::string& directory,
                           const std::string& host, int32_t slot, uint64_t worker)
    : output_(std::move(output)) {
  line_.host = host;
  line_.slot = slot;
  if (directory.empty()) return;
  const std::string name = fmt::format("{}.{}.{}", host, slot, worker);
  const std::string folder = path_in(directory, name);
  output_->open(folder, folder_in(directory, name));
  files_[0] = path_in(folder, "stdout");
  files_[1] = path_in(folder, "stderr");
}

void WorkerOutput::feed(bool is_stderr, std::string_view bytes) {
  const size_t index = is_stderr ? 1 : 0;
  if (!files_[index].empty()) output_->append(files_[index], std::string(bytes));
  line_.is_stderr = is_stderr;
  output_->lines(splitters_[index], line_, std::string(bytes));
}

void WorkerOutput::finish() {
  for (const size_t index : {0, 1}) {
    line_.is_stderr = index == 1;
    output_->last_line(splitters_[index], line_);
    if (!files_[index].empty()) output_->append(files_[index], "");
  }
}

}  // namespace hvd::launch

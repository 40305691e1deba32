// Lines and files of a worker's output.
#include "launch/worker_output.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "base/file.h"
#include "base/status.h"

namespace hvd::launch {

WorkerOutput::WorkerOutput(std::shared_ptr<OutputThread> output, const std::string& directory,
                           const std::string& host, int32_t slot, uint64_t worker)
    : output_(std::move(output)) {
  line_.host = host;
  line_.slot = slot;
  if (directory.empty()) return;
  const std::string folder = path_in(directory, fmt::format("{}.{}.{}", host, slot, worker));
  if (const int error = make_directories(folder); error != 0) {
    throw Error(HVD_UNAVAILABLE,
                fmt::format("output directory {} can't be made: {}", folder, std::strerror(error)));
  }
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

// What one worker prints on its way to the output thread: cut into lines that say where they come from, and
// into files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "launch/output.h"

namespace hvd::launch {

class WorkerOutput {
 public:
  /// directory: for the folder <host>.<slot>.<worker> with its files, or "". Throws Error(HVD_UNAVAILABLE).
  WorkerOutput(std::shared_ptr<OutputThread> output, const std::string& directory, const std::string& host,
               int32_t slot, uint64_t worker);
  void set_rank(int32_t rank) { line_.rank = rank; }
  void feed(bool is_stderr, std::string_view bytes);
  /// Nothing more comes.
  void finish();

 private:
  const std::shared_ptr<OutputThread> output_;
  OutputLine line_;  // where its lines come from
  const std::shared_ptr<LineSplitter> splitters_[2] = {std::make_shared<LineSplitter>(),
                                                       std::make_shared<LineSplitter>()};
  std::string files_[2];
};

}  // namespace hvd::launch

// The group of processes that a launcher has started this one in, as the module that knows it sees it: enough
// to find the others without an address that everybody was told beforehand.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "backend/module.h"
#include "base/clock.h"
#include "base/options.h"
#include "base/status.h"

namespace hvd::selection {

class World {
 public:
  /// Asks the modules that know the launcher in order. Blocks until all ranks have come. HVD_UNAVAILABLE: no
  /// launcher started this process, or no module knows the group; the message says why, module by module.
  static Status open(const Options& options, Duration timeout, World* ret_world);

  /// Asks one module. processes: how many the launcher says it has started, or 0. A module that finds itself
  /// alone among several belongs to another launcher: HVD_UNAVAILABLE.
  static Status of(std::shared_ptr<backend::Module> module, int64_t processes, Duration timeout,
                   World* ret_world);

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  /// Every rank gets the bytes that rank 0 has. Collective over the group.
  Status broadcast(void* data, size_t size, Duration timeout) const;

 private:
  std::shared_ptr<backend::Module> module_;
  int32_t rank_ = 0, size_ = 1;
};

}  // namespace hvd::selection

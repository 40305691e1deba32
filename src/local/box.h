// Where a box comes from: memory without a name, reached by the ranks of the host through the owner's
// descriptor, so that nothing is left behind however a process ends.
#pragma once

#include <array>
#include <memory>

#include "base/status.h"
#include "local/layout.h"

namespace hvd::local {

using Token = std::array<uint64_t, 2>;

/// This rank's own box of one generation. The descriptor stays open as long as this lives: peers open it.
class OwnBox {
 public:
  /// HVD_UNAVAILABLE with the reason: this process can share no memory in this way.
  static Status create(std::unique_ptr<OwnBox>* ret_box);
  OwnBox(const OwnBox&) = delete;
  OwnBox& operator=(const OwnBox&) = delete;
  ~OwnBox();

  const std::shared_ptr<Box>& memory() const { return memory_; }
  int descriptor() const { return descriptor_; }
  const Token& token() const { return token_; }

 private:
  OwnBox() = default;
  int descriptor_ = -1;
  Token token_{};
  std::shared_ptr<Box> memory_;
};

/// Memory of the same shape for a rank that shares with nobody.
std::shared_ptr<Box> private_box();

enum class Opening { kDone, kGone, kRefused };

/// Maps the box of another process of this host, to be written by the rank of this index in the group: the
/// bells and its ring, the rest can only be read. kGone: the process, or that box of it, is there no more.
/// kRefused: anything else, as when this process has no descriptor or memory left; `reason` says what. The
/// box is as large as it must be and can't shrink: reading it never faults, whatever its owner does.
Opening open_box(int32_t process, int32_t descriptor, const Token& token, int32_t writer,
                 std::shared_ptr<Box>* ret_memory, std::string* reason);

}  // namespace hvd::local

// The boxes of a host's ranks as one of them has them: its own, and the others' from when each is first
// needed.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "local/box.h"

namespace hvd::local {

/// Any thread. Boxes that were had once stay mapped as long as this lives.
class Boxes {
 public:
  /// Maps the box of another index, as open_box.
  using Open = std::function<Opening(int32_t index, std::shared_ptr<Box>* ret_box, std::string* reason)>;
  struct Loss {
    int32_t index;
    std::string reason;
    bool gone;  // else this process can't map it, which is not its owner's fault
  };

  /// by index; boxes[index] is this rank's own. Those that are NULL are had by `open`.
  Boxes(std::vector<std::shared_ptr<Box>> boxes, int32_t index, Open open = {});
  Boxes(const Boxes&) = delete;
  Boxes& operator=(const Boxes&) = delete;

  int32_t size() const { return static_cast<int32_t>(boxes_.size()); }
  int32_t index() const { return index_; }
  Box& own() const { return *boxes_[static_cast<size_t>(index_)]; }

  /// NULL: not had yet, or lost.
  Box* known(int32_t index) const {
    return known_[static_cast<size_t>(index)].load(std::memory_order_acquire);
  }
  /// Maps it if that was not done. NULL: it can't be had, now and later; it is among the losses once, and the
  /// owner's bell for messages is rung.
  Box* reach(int32_t index) {
    Box* const box = known(index);
    return box != nullptr ? box : open(index);
  }
  /// The same, before anybody else uses it: HVD_OK or why not, which is no loss.
  Opening try_reach(int32_t index, std::string* reason);

  /// Of one that can't be had: it is its owner's loss. Else this process can't map it.
  bool is_gone(int32_t index) const {
    const std::lock_guard lock(mutex_);
    return lost_[static_cast<size_t>(index)] == Lost::kGone;
  }
  bool has_losses() const { return has_losses_.load(std::memory_order_acquire); }
  std::vector<Loss> take_losses();

 private:
  Box* open(int32_t index);
  Opening map(size_t at, std::string* reason);

  const int32_t index_;
  const Open open_;
  std::vector<std::atomic<Box*>> known_;
  std::atomic<bool> has_losses_{false};
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Box>> boxes_;  // that of index_ is there from the start
  enum class Lost : uint8_t { kNot, kGone, kRefused };
  std::vector<Lost> lost_;
  std::vector<Loss> losses_;
};

/// Whom each of `size` ranks has from the start: the first, and those at distances of powers of four. Who
/// gives a generation up tells these, they tell theirs, and so all know within few steps. Ascending, without
/// `index`.
std::vector<int32_t> neighbours(int32_t index, int32_t size);

}  // namespace hvd::local

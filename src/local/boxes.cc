// Maps boxes of peers on demand, once each.
#include "local/boxes.h"

#include <algorithm>
#include <utility>

#include "local/bell.h"

namespace hvd::local {

Boxes::Boxes(std::vector<std::shared_ptr<Box>> boxes, int32_t index, Open open)
    : index_(index),
      open_(std::move(open)),
      known_(boxes.size()),
      boxes_(std::move(boxes)),
      lost_(boxes_.size()) {
  for (size_t i = 0; i < boxes_.size(); ++i) known_[i].store(boxes_[i].get(), std::memory_order_release);
}

Opening Boxes::map(size_t at, std::string* reason) {
  if (known_[at].load(std::memory_order_relaxed) != nullptr) return Opening::kDone;
  std::shared_ptr<Box> box;
  const Opening opening = open_ ? open_(static_cast<int32_t>(at), &box, reason) : Opening::kRefused;
  if (opening != Opening::kDone) return opening;
  boxes_[at] = std::move(box);
  known_[at].store(boxes_[at].get(), std::memory_order_release);
  return Opening::kDone;
}

Opening Boxes::try_reach(int32_t index, std::string* reason) {
  const std::lock_guard lock(mutex_);
  return map(static_cast<size_t>(index), reason);
}

Box* Boxes::open(int32_t index) {
  const auto at = static_cast<size_t>(index);
  {
    const std::lock_guard lock(mutex_);
    if (lost_[at] != Lost::kNot) return nullptr;
    std::string reason;
    const Opening opening = map(at, &reason);
    if (opening == Opening::kDone) return boxes_[at].get();
    losses_.push_back({index, std::move(reason), opening == Opening::kGone});
    lost_[at] = opening == Opening::kGone ? Lost::kGone : Lost::kRefused;
    has_losses_.store(true, std::memory_order_release);
  }
  ring(own().bells.message);
  return nullptr;
}

std::vector<Boxes::Loss> Boxes::take_losses() {
  const std::lock_guard lock(mutex_);
  has_losses_.store(false, std::memory_order_relaxed);
  return std::exchange(losses_, {});
}

std::vector<int32_t> neighbours(int32_t index, int32_t size) {
  std::vector<int32_t> found;
  if (index == 0) {
    for (int32_t i = 1; i < size; ++i) found.push_back(i);
    return found;
  }
  found.push_back(0);
  for (int32_t distance = 1; distance < size; distance *= 4) {
    found.push_back((index + distance) % size);
    found.push_back((index - distance + size) % size);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  std::erase(found, index);
  return found;
}

}  // namespace hvd::local

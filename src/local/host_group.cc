// Segments, stamps and waits of the ranks of one host.
#include "local/host_group.h"

#include <fmt/format.h>

#include <algorithm>

#include "local/bell.h"

namespace hvd::local {

HostGroup::HostGroup(std::shared_ptr<Boxes> boxes, std::vector<int32_t> ranks)
    : boxes_(std::move(boxes)),
      ranks_(std::move(ranks)),
      index_(boxes_->index()),
      own_(&boxes_->own()),
      crowded_(crowded(ranks_.size())),
      placement_(std::make_shared<Placement>(ranks_.size(), static_cast<size_t>(index_),
                                             [boxes = boxes_](size_t index) {
                                               Box* const box = boxes->known(static_cast<int32_t>(index));
                                               return box == nullptr ? nullptr : &box->processor.value;
                                             })) {}

int32_t HostGroup::index_of(int32_t rank) const {
  const auto at = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  return at == ranks_.end() || *at != rank ? -1 : static_cast<int32_t>(at - ranks_.begin());
}

const Box& HostGroup::nowhere() {
  static const std::shared_ptr<Box> kNothing = private_box();
  return *kNothing;
}

Task HostGroup::settle() {
  if (size() <= kMostAmongAll) co_return Status();
  co_return co_await wait([this] {
    for (size_t segment = 0; segment < kSegments; ++segment) {
      if (!released(segment)) return false;
    }
    return true;
  });
}

void HostGroup::abort() {
  aborted_.store(true, std::memory_order_seq_cst);
  sleeper_.rouse(own_->bells.exec, kAwake);
}

bool HostGroup::carry_on(Task& task, Time deadline) {
  deadline_ = deadline;
  late_ = false;
  placement_->here();
  if (waiting_.task == nullptr) task.begin();
  while (!task.done()) {
    if (!await(deadline)) return false;
    std::exchange(waiting_, {}).task.resume();
  }
  return true;
}

/// Whether what the task waits for was over before the deadline.
bool HostGroup::await(Time deadline) {
  while (!late_) {
    for (Spin looks = spin(deadline); looks.again();) {
      if (waiting_.look(waiting_.wait)) return true;
    }
    const Duration left = deadline == Time::max() ? kLongestSleep : deadline - now();
    if (left <= Duration::zero()) return false;
    own_->bells.exec.store(kAsleep, std::memory_order_seq_cst);
    if (waiting_.look(waiting_.wait)) {
      own_->bells.exec.store(kAwake, std::memory_order_seq_cst);
      return true;
    }
    sleeper_.sleep(
        own_->bells.exec, kAsleep, [this] { return aborted(); }, std::min(left, kLongestSleep));
    own_->bells.exec.store(kAwake, std::memory_order_seq_cst);  // also after a wake-up without a reason
  }
  return false;
}

std::shared_ptr<backend::Board> HostGroup::board() const {
  if (size() > kMostAmongAll && crowded_) return nullptr;
  std::vector<backend::BoardNotes*> notes;
  for (int32_t i = 0; i < size(); ++i) {
    Box* const there = boxes_->reach(i);
    if (there == nullptr) return nullptr;
    notes.push_back(&there->notes);
  }
  return std::make_shared<backend::Board>(std::move(notes), index_, &boxes_->known(0)->bells.board, crowded_,
                                          placement_, boxes_);
}

Status HostGroup::lost(int32_t whose) const {
  Status status(HVD_PEER_LOST, "the generation was given up");
  if (whose >= 0 && whose < size()) {
    status.message += fmt::format(" while rank {} was awaited", rank(whose));
    status.rank = rank(whose);
  }
  status.backend = "local";
  return status;
}

}  // namespace hvd::local

// Segments, stamps and waits of the ranks of one host.
#include "local/host_group.h"

#include <fmt/format.h>

#include <algorithm>

#include "local/bell.h"

namespace hvd::local {

HostGroup::HostGroup(std::vector<std::shared_ptr<Box>> boxes, std::vector<int32_t> ranks, int32_t index)
    : boxes_(std::move(boxes)),
      ranks_(std::move(ranks)),
      index_(index),
      own_(boxes_[static_cast<size_t>(index)].get()),
      crowded_(crowded(ranks_.size())) {}

int32_t HostGroup::index_of(int32_t rank) const {
  const auto at = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  return at == ranks_.end() || *at != rank ? -1 : static_cast<int32_t>(at - ranks_.begin());
}

void HostGroup::wake(Box& box) { ring(box.bells.exec); }

void HostGroup::abort() {
  aborted_.store(true, std::memory_order_seq_cst);
  sleeper_.rouse(own_->bells.exec, kAwake);
}

Status HostGroup::wait_slowly(bool (*ready)(void*), void* context, int32_t whose) {
  for (;;) {
    for (Spin looks = spin(); looks.again();) {
      if (aborted()) return lost(whose);
      if (ready(context)) return {};
    }
    own_->bells.exec.store(kAsleep, std::memory_order_seq_cst);
    const bool over = aborted();
    if (over || ready(context)) {
      own_->bells.exec.store(kAwake, std::memory_order_seq_cst);
      return over ? lost(whose) : Status();
    }
    sleeper_.sleep(own_->bells.exec, kAsleep, [this] { return aborted(); });
    own_->bells.exec.store(kAwake, std::memory_order_seq_cst);  // also after a wake-up without a reason
  }
}

std::shared_ptr<backend::Board> HostGroup::board() const {
  std::vector<backend::BoardNotes*> notes;
  for (const auto& box : boxes_) notes.push_back(&box->notes);
  auto keep = std::make_shared<const std::vector<std::shared_ptr<Box>>>(boxes_);
  return std::make_shared<backend::Board>(std::move(notes), index_, &boxes_[0]->bells.board, crowded_,
                                          std::move(keep));
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

// Counts equal calls of a name, and grants it a slot of the board when they repeat.
#include "collective/grants.h"

#include <utility>

#include "collective/matcher.h"
#include "collective/mismatch.h"

namespace hvd::collective {

namespace {
// More names than slots; but programs that never repeat one must not fill memory.
constexpr size_t kMostKnown = 2 * backend::kBoardSlots;

/// Whether a large slot has room for its data, and no small one.
bool needs_large(const Signature& call) {
  return runs_after_meeting(call, backend::kLargeSlots) && !runs_after_meeting(call, 0);
}

}  // namespace

bool runs_after_meeting(const Signature& call, uint32_t slot) {
  return call.payload > backend::Board::bytes_of(slot);
}

uint32_t Grants::Slots::take() {
  if (free.empty()) return next++;
  const uint32_t slot = free.back();
  free.pop_back();
  return slot;
}

std::optional<uint32_t> Grants::take(const Signature& call) {
  if (needs_large(call) && large_.left() > 0) return large_.take();
  const bool question = is_question(call);
  if (small_.left() > (question || question_ ? 0 : 1)) {
    question_ = question_ || question;
    return small_.take();
  }
  if (large_.left() > 0) return large_.take();
  return {};
}

/// All ranks have made its call by messages since: none of them looks at it any more.
void Grants::give_back(uint32_t slot) {
  Slots& slots = slot < small_.first ? large_ : small_;
  slots.free.push_back(slot);
}

Grant Grants::agreed(const SignaturePtr& call, uint64_t word) {
  if (known_.size() >= kMostKnown && !known_.contains(call->key)) {
    std::erase_if(known_, [](const auto& entry) { return !entry.second.slot; });
  }
  Known& known = known_[call->key];
  const bool same = known.call == call || (known.call != nullptr && agrees(*known.call, *call));
  known.call = call;
  known.times = same ? known.times + 1 : 1;
  if (known.times < 2) return {};
  const bool outgrown = known.slot && *known.slot >= small_.first && needs_large(*call);
  if (outgrown && large_.left() > 0) give_back(*std::exchange(known.slot, {}));
  if (!known.slot) known.slot = take(*call);
  if (!known.slot || grants_[*known.slot] == backend::Board::kMostGrants) return {};
  known.times = 0;
  return {*known.slot, ++grants_[*known.slot], word};
}

}  // namespace hvd::collective

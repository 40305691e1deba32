// Counts equal calls of a name, and grants it a slot of the board when they repeat.
#include "collective/grants.h"

#include "backend/board.h"
#include "collective/matcher.h"
#include "collective/mismatch.h"

namespace hvd::collective {

namespace {
constexpr size_t kMostKnown = 1024;  // programs that never repeat a name must not fill memory
}  // namespace

bool runs_after_meeting(const Signature& call) { return call.payload > backend::kBoardBytes; }

Grant Grants::agreed(const SignaturePtr& call, uint64_t word) {
  if (known_.size() >= kMostKnown && !known_.contains(call->key)) {
    std::erase_if(known_, [](const auto& entry) { return entry.second.grant.number == 0; });
  }
  Known& known = known_[call->key];
  const bool same = known.call == call || (known.call != nullptr && agrees(*known.call, *call));
  known.call = call;
  known.times = same ? known.times + 1 : 1;
  if (known.times < 2) return {};
  if (known.grant.number == 0) {
    const bool question = is_question(*call);
    if (slots_ + (question || question_ ? 0 : 1) >= backend::kBoardSlots) return {};
    question_ = question_ || question;
    known.grant.slot = slots_++;
  }
  if (known.grant.number == backend::Board::kMostGrants) return {};
  ++known.grant.number;
  known.grant.word = word;
  known.times = 0;
  return known.grant;
}

}  // namespace hvd::collective

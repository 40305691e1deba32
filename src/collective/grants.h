// Which calls that the ranks repeat go by the board from the next one on: rank 0's decision. Pure.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/board.h"
#include "collective/messages.h"

namespace hvd::collective {

/// Whether its data moves in the backend once all have met, since a note of this slot has no room for them.
bool runs_after_meeting(const Signature& call, uint32_t slot);

class Grants {
 public:
  /// All ranks have called this by messages, in agreement, with this word, and would rather meet. The second
  /// time in a row they are granted a slot; so again after that was closed. number 0: not now.
  Grant agreed(const SignaturePtr& call, uint64_t word);

 private:
  struct Known {
    SignaturePtr call;
    int times = 0;
    std::optional<uint32_t> slot;  // stays with the key
  };
  /// Slots of one size.
  struct Slots {
    uint32_t first, end;
    uint32_t next = first;            // never taken, up to `end`
    std::vector<uint32_t> free = {};  // given back
    size_t left() const { return free.size() + (end - next); }
    uint32_t take();
  };
  std::optional<uint32_t> take(const Signature& call);
  void give_back(uint32_t slot);

  std::unordered_map<std::string, Known> known_;  // by key
  Slots large_{0, backend::kLargeSlots}, small_{backend::kLargeSlots, backend::kBoardSlots};
  std::array<uint32_t, backend::kBoardSlots> grants_{};  // of each slot, so far
  bool question_ = false;  // whether one is that of checks, which always have one
};

}  // namespace hvd::collective

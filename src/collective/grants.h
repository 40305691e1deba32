// Which calls that the ranks repeat go by the board from the next one on: rank 0's decision. Pure.
#pragma once

#include <string>
#include <unordered_map>

#include "collective/messages.h"

namespace hvd::collective {

/// Whether its data moves in the backend once all have met, and not on the board.
bool runs_after_meeting(const Signature& call);

class Grants {
 public:
  /// All ranks have called this by messages, in agreement, with this word, and would rather meet. The second
  /// time in a row they are granted a slot; so again after that was closed. number 0: not now.
  Grant agreed(const SignaturePtr& call, uint64_t word);

 private:
  struct Known {
    SignaturePtr call;
    int times = 0;
    Grant grant;
  };
  std::unordered_map<std::string, Known> known_;  // by key
  uint32_t slots_ = 0;                            // taken: a slot stays with its key
  bool question_ = false;                         // whether one is that of checks, which always have one
};

}  // namespace hvd::collective

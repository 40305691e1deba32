// Which generation an instance is in, and which it may no longer enter. Backends are aborted from any thread
// at any moment, also before the connect that the abort is for: whoever keeps generations asks here, under a
// lock of its own. C++17: backend modules compile this too.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

namespace hvd {

class GenerationGate {
 public:
  /// connect: `number` becomes the current generation. False if it, or one after it, was given up.
  bool enter(uint64_t number) {
    if (given_up(number)) return false;
    inside_ = true;
    current_ = number;
    return true;
  }

  /// abort: `number` and all before it are given up. True if it was the current one, for the caller to end.
  bool give_up(uint64_t number) {
    if (!given_up(number)) {
      any_given_up_ = true;
      given_up_ = number;
    }
    return leave(number);
  }

  /// disconnect, or a connect that has failed. True if `number` was the current one.
  bool leave(uint64_t number) {
    const bool was = inside(number);
    if (was) inside_ = false;
    return was;
  }
  /// The number of the one that was current, if any was.
  std::optional<uint64_t> leave() {
    return std::exchange(inside_, false) ? std::optional(current_) : std::nullopt;
  }

  bool inside(uint64_t number) const { return inside_ && current_ == number; }
  bool given_up(uint64_t number) const { return any_given_up_ && number <= given_up_; }

 private:
  bool inside_ = false, any_given_up_ = false;
  uint64_t current_ = 0;
  uint64_t given_up_ = 0;  // the highest
};

}  // namespace hvd

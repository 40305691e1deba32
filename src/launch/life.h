// Whether a process that was started runs, or is stopped.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/digest.h"

namespace hvd::launch {

/// What whoever started a worker sees of its process.
enum class Life : uint8_t { kUnknown, kRunning, kStopped, kEnded };

/// What a worker says of its process, none of which is believed.
struct ProcessClaim {
  int64_t process = 0;  // its number
  int32_t life = -1;    // the descriptor of its life (base/life.h), -1: none
  Digest life_token{};
};

/// Of a process that leads a group. `said`: the number that the worker itself names, which counts if it is of
/// that group (a shell may have been started first).
Life life_of(pid_t leader, int64_t said);

}  // namespace hvd::launch

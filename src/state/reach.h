// Reads the memory of another process of this machine, where the kernel allows it (process_vm_readv): one
// copy, and nothing for its owner to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/digest.h"

namespace hvd::state {

/// Where a process can be read. Plain words: it travels between ranks.
struct Reach {
  uint64_t process = 0;  // 0: it shall not be read
  uint64_t mark = 0;     // address of `token` there
  Digest token;          // at random: whoever finds it there reads the right process of the right machine
};
static_assert(sizeof(Reach) == 32, "no padding on the wire");

/// This process's; the token stays where it is.
Reach own_reach();

/// Whether this process can read that one, which is the one it says it is.
bool can_read(const Reach& of);

/// Copies `size` bytes at `address` of that process. False, with errno: it is gone, or has no such memory.
/// What it writes meanwhile may be read in part: only a digest tells.
bool read_from(const Reach& of, uint64_t address, void* to, size_t size);

}  // namespace hvd::state

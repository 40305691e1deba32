// Who sends what to whom in a sync: a pure function of what the ranks told each other, so that every rank
// comes to the same plan.
#pragma once

#include <cstdint>
#include <vector>

#include "base/digest.h"
#include "state/state.h"

namespace hvd::state {

/// One variable as one rank has it.
struct Version {
  Digest digest;
  uint64_t size = 0;  // bytes
  bool operator==(const Version&) const = default;
};

/// What there is, and who has it already.
struct Holdings {
  struct Item {
    uint64_t size = 0;      // bytes, at the root
    uint64_t piece = 0;     // it travels in multiples of so many bytes; 0: whole
    bool readable = false;  // where a rank has it, who can read that rank's memory can read it
    uint64_t pieces() const { return piece == 0 ? 1 : (size + piece - 1) / piece; }
  };
  std::vector<Item> variables;
  std::vector<std::vector<std::vector<bool>>> has;  // by rank, variable and piece; the root has all
  std::vector<std::vector<bool>> reads;             // by rank, whose memory it can read; empty: nobody's
};

/// Bytes of one variable.
struct Part {
  uint32_t variable = 0;
  uint64_t offset = 0, size = 0;
  bool operator==(const Part&) const = default;
};

/// Bytes that travel together from one rank to all that lack them.
struct Transfer {
  int32_t source = 0;
  std::vector<int32_t> receivers;  // ascending, without the source
  std::vector<Part> parts;         // ascending by variable, in the order in which they are packed
  uint64_t bytes = 0;              // sum of their sizes, not 0
  bool direct = false;             // its only receiver reads the source's memory, who does nothing for it
};

/// Variables below this size are packed with others that go to the same ranks, to at most kPackLimit.
inline constexpr uint64_t kPackBelow = 64 << 10;
inline constexpr uint64_t kPackLimit = 4 << 20;
/// Longer ones are divided among those that have them, and are worked on while the rest is on its way.
inline constexpr uint64_t kRange = 16 << 20;
/// What is shorter is not worth a look into another's memory.
inline constexpr uint64_t kDirectFrom = 1 << 20;

/// Rank whose state everybody takes: among those that have state the highest revision, then the lowest
/// rank; 0 if nobody has state (contract 5).
int32_t choose_root(const std::vector<Summary>& summaries);

/// The ranks' words of themselves, as far as what was known of them before goes; all of it if nothing was.
/// A rank may have saved since, in a callback, and the newest commit wins (contract 5).
std::vector<Summary> believed(std::vector<Summary> told, const std::vector<Summary>& known);

/// Whether all have state, and the same.
bool all_agree(const std::vector<Summary>& summaries);

/// Each variable whole: a rank has it where its version is the root's. `versions[rank][variable]`: every rank
/// lists the same variables.
Holdings hold_whole(const std::vector<std::vector<Version>>& versions, int32_t root);

/// Everybody gets what it lacks from a rank that has it, the one with the least to send so far (contract 6).
std::vector<Transfer> plan_transfers(const Holdings& holdings);

}  // namespace hvd::state

// What the collectives over shared memory have in common: who takes part on this host, how an operation's
// segments are numbered and found, and how a rank works on whatever is ready.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "local/host_group.h"

namespace hvd::local {

/// The ranks of one host that take part in one operation, as one of them sees them.
///
/// A block of the operation has a number; the segment that carries it bears the stamp of operation and
/// number, so readers find it wherever it lies. The writer puts its block `number` into segment
/// (sequence + number) % kSegments, once its readers have released what was there.
struct Team {
  HostGroup& group;
  uint64_t sequence = 0;
  std::vector<int32_t> members;  // indices into the group, in rank order
  std::vector<int32_t> others;   // the same without this rank
  int32_t me = 0;                // position in members
  int32_t phase = 0;             // of an operation that is two on its host: 0, 1

  int32_t size() const { return static_cast<int32_t>(members.size()); }
  int32_t member(int32_t position) const { return members[static_cast<size_t>(position)]; }

  // Stamps are compared for equality alone, and no stamp is 0: numbers may wrap around.
  uint64_t stamp(uint64_t number) const {
    return HostGroup::stamp(sequence + 1, (number & 0x7fffff) | static_cast<uint64_t>(phase) << 23);
  }
  size_t segment(uint64_t number) const { return static_cast<size_t>((sequence + number) % kSegments); }
};

/// Where a member's block lies.
struct Found {
  size_t segment;
  const uint8_t* data;
};

inline std::optional<Found> find(const Team& team, int32_t member, uint64_t number) {
  const uint64_t stamp = team.stamp(number);
  for (size_t i = 0; i < kSegments; ++i) {
    const size_t segment = (team.segment(number) + i) % kSegments;
    if (team.group.holds(member, segment) == stamp) {
      return Found{segment, team.group.segment(member, segment)};
    }
  }
  return std::nullopt;
}

/// The same where a member puts every block into the segment of its number.
inline std::optional<Found> in_order(const Team& team, int32_t member, uint64_t number) {
  const size_t segment = team.segment(number);
  if (team.group.holds(member, segment) != team.stamp(number)) return std::nullopt;
  return Found{segment, team.group.segment(member, segment)};
}

inline void release(const Team& team, int32_t member, const Found& found, uint64_t number) {
  team.group.take(member, found.segment, team.stamp(number));
}

enum class Step { kStuck, kWorked, kDone };

/// Calls step() until it is done; waits while it is stuck, which ends when a peer has done something.
/// HVD_PEER_LOST after abort, which is looked for before every step.
template <class Function>
Task work(HostGroup& group, Function step) {
  for (;;) {
    Step last = Step::kStuck;
    Status status = co_await group.wait([&] {
      last = step();
      return last != Step::kStuck;
    });
    if (!status.ok() || last == Step::kDone) co_return status;
  }
}

/// A member's block; it is to be released. HVD_PEER_LOST after abort.
inline auto await_block(Team& team, int32_t member, uint64_t number, std::optional<Found>& found) {
  return team.group.wait(
      [&team, member, number, &found] {
        found = find(team, member, number);
        return found.has_value();
      },
      member);
}
/// A segment of this rank's ring that it may write to.
inline auto await_release(HostGroup& group, size_t segment) {
  return group.wait([&group, segment] { return group.released(segment); });
}

/// Whether results of so many bytes a rank are written past the caches: those of all ranks of the team
/// together would not stay in them until they are read.
inline bool streams(const Team& team, size_t bytes) {
  constexpr size_t kFrom = size_t{32} << 20;
  return bytes >= kFrom / static_cast<size_t>(team.size());
}

/// Blocks of an array.
struct Blocks {
  size_t total = 0;  // in elements, or bytes: as the one who cuts has it
  size_t each = 1;   // the last may be shorter

  size_t count() const { return total / each + (total % each != 0 ? 1 : 0); }
  size_t first(size_t block) const { return block * each; }
  size_t length(size_t block) const { return std::min(each, total - block * each); }
};

}  // namespace hvd::local

// Reaches into the commit memory of a state, as a failing memory does.
#pragma once

#include "state/impl.h"

namespace hvd::state {

/// A member function's or member's pointer may be named where a template is instantiated explicitly, whatever
/// its access is: tests alone look so far.
template <class Tag, auto Member>
struct Opened {
  friend constexpr auto member(Tag) { return Member; }
};
struct ImplTag {
  friend constexpr auto member(ImplTag);
};
struct SealedTag {
  friend constexpr auto member(SealedTag);
};
template struct Opened<ImplTag, &State::impl_>;
template struct Opened<SealedTag, &Shards::sealed_>;

/// The last commit of a state's shards.
inline auto& commit_of(State& state) {
  Shards& shards = (state.*member(ImplTag())).get()->shards;
  return shards.*member(SealedTag());
}

/// Flips a bit in the middle of what a parcel has of key number `key`.
inline void flip(Parcel& parcel, uint32_t key) {
  for (const Segment& segment : parcel.segments) {
    if (segment.range.key == key && segment.bytes > 0) parcel.data(segment)[segment.bytes / 2] ^= 4;
  }
}

}  // namespace hvd::state

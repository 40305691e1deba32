// The members of a generation in few bytes. What most of them share is told once, and to a receiver who
// knows the generation before only what has changed since. Addresses are told as their difference from known
// ones: from the member's own one before, or that of the member before it, since those of one host have much
// in common.
#pragma once

#include <memory>
#include <vector>

#include "base/roster.h"
#include "wire/names.h"

namespace hvd::wire {

/// The roster that receivers have already.
using Known = hvd::Roster;

/// known: null if they know none.
std::unique_ptr<RosterT> write_roster(const std::vector<hvd::Member>& members, const Known* known);

/// Bytes from the network: throws Error(HVD_INVALID) that says what is wrong with them.
std::vector<hvd::Member> read_roster(const RosterT& roster, const Known* known);

}  // namespace hvd::wire

// Whether what a worker brings to a generation fits what the others bring. Pure.
#pragma once

#include <string>
#include <vector>

#include "membership/membership.h"

namespace hvd::membership {

/// Bytes of addresses in one assignment, which goes to every member: each has an equal share.
inline constexpr size_t kMostAddresses = size_t{8} << 20;

/// What a newcomer must bring so that it takes nothing from those who are there (contract 16).
struct Terms {
  std::vector<Setting> settings;
  std::vector<Offer> offers;  // what all of them bring, without addresses; first the backend for host memory
};

/// events: not empty.
Terms terms_of(const std::vector<Setting>& settings, const std::vector<const std::vector<Offer>*>& offers);

/// Why a worker with this event can't be one of them; "" if it can.
std::string misfit(const Terms& terms, const ReadyEvent& event);

/// Why its addresses are too long for a generation of this size; "" if they are not.
std::string too_long(size_t bytes, size_t size);

/// Equal for those that can be together in a first generation, which does with whatever all of them bring.
std::string beginning_terms(const ReadyEvent& event);

}  // namespace hvd::membership

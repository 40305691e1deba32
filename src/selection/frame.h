// The addresses of a worker's backends as one blob, which travels with its registration.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace hvd::selection {

/// What a worker says of one backend: its address and what it can do, or why it does not bring it.
struct Offer {
  std::string name;     // 1 to kLongestName bytes
  std::string lacking;  // why this worker does not bring it (cut to kLongestReason bytes); "" if it does
  uint64_t memories = 0, dtypes = 0, collectives = 0;
  std::vector<uint8_t> address;
  bool brought() const { return lacking.empty(); }
};

constexpr size_t kMostOffers = 16, kLongestName = 32, kLongestReason = 200;
constexpr size_t kMostAddress = size_t{1} << 20;  // of one backend, and of all together

/// HVD_INTERNAL where it does not fit.
Status encode(const std::vector<Offer>& offers, std::vector<uint8_t>* ret_blob);
/// HVD_INVALID, with what is wrong: a peer's word is checked before it is believed.
Status decode(std::span<const uint8_t> blob, std::vector<Offer>* ret_offers);

}  // namespace hvd::selection

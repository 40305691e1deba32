// A member of a generation as everybody knows it, and what each brings of each backend.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/digest.h"

namespace hvd {

/// What a worker brings of one backend: its address and what it can do, or why it does not bring it.
struct Offer {
  std::string backend;
  std::string lacking;                                 // why this worker does not bring it; "" if it does
  uint64_t memories = 0, dtypes = 0, collectives = 0;  // bits, as in hvd_backend_description
  std::vector<uint8_t> address;
  bool brought() const { return lacking.empty(); }
  bool operator==(const Offer&) const = default;
};

/// Something that must be the same on all workers of a job, with its value on one of them.
struct Setting {
  std::string name, value;
  bool operator==(const Setting&) const = default;
};

struct Member {
  uint64_t worker = 0;
  std::string host;
  std::vector<Offer> offers;  // first that of the backend for host memory
  int32_t local_rank = 0;
  bool has_state = false;
  uint64_t revision = 0;
  Digest digest{};
};

/// The offer of this backend, or null if the member does not bring it.
inline const Offer* find_offer(const Member& member, const std::string& backend) {
  for (const Offer& offer : member.offers) {
    if (offer.backend == backend && offer.brought()) return &offer;
  }
  return nullptr;
}

}  // namespace hvd

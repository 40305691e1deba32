// What a rank tells the others about itself: who may share memory with it and where its box is. A row of its
// offers, beside that of the backend that joins the hosts.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "local/box.h"
#include "local/collectives.h"

namespace hvd::local {

/// Ranks whose identities are equal, and whose hosts' names are, reach each other's memory.
struct Identity {
  std::array<uint8_t, 16> boot{};  // of the running kernel
  uint64_t processes = 0;          // namespace in which process numbers mean the same
  uint32_t user = 0;
  uint32_t layout = kLayoutVersion;
  uint64_t bytes = sizeof(Box);
  // The check takes the literal 0 of the comparison that the compiler writes for a null pointer.
  auto operator<=>(const Identity&) const = default;
};

/// HVD_UNAVAILABLE: this process can't tell (no /proc).
Status own_identity(Identity* ret_identity);

struct Place {
  Identity identity;
  int32_t process = 0;
  int32_t descriptor = 0;
  Token token{};
};

struct Address {
  std::optional<Place> place;  // none: it shares no memory
  bool payload = true;         // not only messages travel by shared memory
};

/// The name of the row. No backend has it.
inline constexpr char kRow[] = "local";

/// For what these offers share memory, as option local says it: "on", "messages" or "off".
std::string shared_by(const std::vector<Offer>& offers);

std::vector<uint8_t> encode(const Address& address);
/// Bytes from the network: HVD_INVALID that says what is wrong with them.
Status decode(std::span<const uint8_t> bytes, Address* ret_address);

/// Ranks by host, the same on every rank: equal name of the host, equal identity, at most `most` in a group.
/// A rank without a place is alone.
Hosts group_by_host(const std::vector<Member>& members, const std::vector<Address>& addresses,
                    int32_t most = kMostLocal);

}  // namespace hvd::local

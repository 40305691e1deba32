// Encodes and checks what ranks tell about shared memory, and groups them by host.
#include "local/address.h"

#include <errno.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace hvd::local {
namespace {

constexpr uint32_t kMagic = 0x4c647668;  // "hvdL"
constexpr uint8_t kFormat = 3;
constexpr uint8_t kShares = 1, kPayload = 2;  // flags

// Fixed order, least significant byte first.
class Writer {
 public:
  template <class Number>
  void number(Number value) {
    for (size_t i = 0; i < sizeof(value); ++i) {
      bytes.push_back(static_cast<uint8_t>(static_cast<uint64_t>(value) >> (8 * i)));
    }
  }
  void raw(std::span<const uint8_t> data) { bytes.insert(bytes.end(), data.begin(), data.end()); }
  std::vector<uint8_t> bytes;
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : left_(bytes) {}
  template <class Number>
  Number number() {
    uint64_t value = 0;
    if (left_.size() < sizeof(Number)) {
      short_ = true;
      left_ = {};
      return 0;
    }
    for (size_t i = 0; i < sizeof(Number); ++i) value |= static_cast<uint64_t>(left_[i]) << (8 * i);
    left_ = left_.subspan(sizeof(Number));
    return static_cast<Number>(value);
  }
  void raw(std::span<uint8_t> out) {
    for (uint8_t& byte : out) byte = number<uint8_t>();
  }
  size_t left() const { return left_.size(); }
  bool too_short() const { return short_; }

 private:
  std::span<const uint8_t> left_;
  bool short_ = false;
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Status own_identity(Identity* ret_identity) {
  Identity identity;
  char line[64] = "";
  FILE* file = fopen("/proc/sys/kernel/random/boot_id", "re");
  const bool read = file != nullptr && fgets(line, sizeof(line), file) != nullptr;
  if (file != nullptr) fclose(file);
  if (!read) return {HVD_UNAVAILABLE, "no /proc/sys/kernel/random/boot_id"};
  const std::string_view text(line, strcspn(line, "\n"));
  size_t digits = 0;
  for (const char c : text) {
    const int digit = hex_digit(c);
    if (digit < 0 || digits == 32) continue;
    identity.boot[digits / 2] = static_cast<uint8_t>(identity.boot[digits / 2] << 4 | digit);
    ++digits;
  }
  if (digits != 32) return {HVD_UNAVAILABLE, fmt::format("the kernel's boot id is '{}'", text)};
  struct stat space {};
  if (stat("/proc/self/ns/pid", &space) != 0) {
    return {HVD_UNAVAILABLE, fmt::format("/proc/self/ns/pid: {}", std::strerror(errno))};
  }
  identity.processes = space.st_ino;
  identity.user = geteuid();
  *ret_identity = identity;
  return {};
}

std::vector<uint8_t> encode(const Address& address) {
  Writer out;
  out.number(kMagic);
  out.number(kFormat);
  out.number(
      static_cast<uint8_t>((address.place.has_value() ? kShares : 0) | (address.payload ? kPayload : 0)));
  if (address.place) {
    const Place& place = *address.place;
    out.raw(place.identity.boot);
    out.number(place.identity.processes);
    out.number(place.identity.user);
    out.number(place.identity.layout);
    out.number(place.identity.bytes);
    out.number(place.process);
    out.number(place.descriptor);
    out.number(place.token[0]);
    out.number(place.token[1]);
  }
  return std::move(out.bytes);
}

Status decode(std::span<const uint8_t> bytes, Address* ret_address) {
  const auto invalid = [&](const std::string& what) {
    return Status(HVD_INVALID, fmt::format("{} bytes of address: {}", bytes.size(), what));
  };
  Reader in(bytes);
  if (in.number<uint32_t>() != kMagic) return invalid("not written with shared memory in mind");
  if (const auto format = in.number<uint8_t>(); format != kFormat) {
    return invalid(fmt::format("format {}, expected {}", format, kFormat));
  }
  Address address;
  const auto flags = in.number<uint8_t>();
  if ((flags & ~(kShares | kPayload)) != 0) return invalid(fmt::format("flags of {}", flags));
  address.payload = (flags & kPayload) != 0;
  if ((flags & kShares) != 0) {
    Place place;
    in.raw(place.identity.boot);
    place.identity.processes = in.number<uint64_t>();
    place.identity.user = in.number<uint32_t>();
    place.identity.layout = in.number<uint32_t>();
    place.identity.bytes = in.number<uint64_t>();
    place.process = in.number<int32_t>();
    place.descriptor = in.number<int32_t>();
    place.token[0] = in.number<uint64_t>();
    place.token[1] = in.number<uint64_t>();
    if (!in.too_short() && (place.process <= 0 || place.descriptor < 0)) {
      return invalid(fmt::format("process {}, descriptor {}", place.process, place.descriptor));
    }
    address.place = place;
  }
  if (in.too_short()) return invalid("cut short");
  if (in.left() > 0) return invalid(fmt::format("{} of them follow what was expected", in.left()));
  *ret_address = std::move(address);
  return {};
}

std::string shared_by(const std::vector<Offer>& offers) {
  const auto row =
      std::find_if(offers.begin(), offers.end(), [](const Offer& o) { return o.backend == kRow; });
  Address address;
  if (row == offers.end() || !decode(row->address, &address).ok()) return "off";
  return address.payload ? "on" : "messages";
}

Hosts group_by_host(const std::vector<Member>& members, const std::vector<Address>& addresses, int32_t most) {
  Hosts hosts;
  std::map<std::pair<std::string, Identity>, size_t> open;  // the group that a host's next rank is put into
  for (size_t rank = 0; rank < members.size(); ++rank) {
    size_t group = hosts.groups.size();
    if (addresses[rank].place) {
      const auto key = std::pair(members[rank].host, addresses[rank].place->identity);
      const auto found = open.find(key);
      if (found != open.end() && static_cast<int32_t>(hosts.groups[found->second].size()) < most) {
        group = found->second;
      }
      open.insert_or_assign(key, group);
    }
    if (group == hosts.groups.size()) hosts.groups.emplace_back();
    hosts.groups[group].push_back(static_cast<int32_t>(rank));
    hosts.group_of.push_back(static_cast<int32_t>(group));
  }
  return hosts;
}

}  // namespace hvd::local

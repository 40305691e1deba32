// Fuzzes rosters, the columns in which a driver tells the members of a generation: whatever is read is as
// long as it says, and the same when it is told anew.
#include "wire/roster.h"

#include <fmt/format.h>

#include "base/status.h"
#include "fuzz.h"
#include "wire/messages.h"

namespace hvd::fuzz {
namespace {

using namespace wire;

hvd::Member member(uint64_t worker, const std::string& host, uint8_t address) {
  hvd::Member result;
  result.worker = worker;
  result.host = host;
  result.offers = {{"gloo", "", 1, 0xff, 0x3f, std::vector<uint8_t>(20, address)},
                   {"nccl", "no device", 0, 0, 0, {}}};
  return result;
}

const Known& known() {
  static const Known all{5, {member(1, "a", 1), member(2, "a", 2), member(3, "b", 3), member(4, "c", 4)}};
  return all;
}

uint32_t small(Decisions& d) { return d.upto(15) == 15 ? static_cast<uint32_t>(d.number()) : d.upto(5); }

/// Few members: a table that says more is refused in the end, after as many were made.
uint32_t count(Decisions& d) { return d.upto(15) == 15 ? d.upto(70'000) : d.upto(5); }

void change(Decisions& d, RosterT* roster) {
  switch (d.upto(9)) {
    case 0: roster->base = d.number(); break;
    case 1: roster->runs.emplace_back(static_cast<int32_t>(small(d) - 1), count(d)); break;
    case 2: roster->workers.push_back(d.number()); break;
    case 3: roster->hosts.push_back(d.text(4)); break;
    case 4: roster->host_of.push_back(small(d)); break;
    case 5: roster->local_ranks.push_back(static_cast<int32_t>(small(d))); break;
    case 6:
      roster->standings.emplace_back(d.number(), wire::Digest(d.number(), 1), count(d), d.coin());
      break;
    case 7: roster->profile_of.emplace_back(small(d), count(d)); break;
    case 8: {
      if (roster->profiles.empty() || d.coin()) {
        roster->profiles.push_back(d.coin() ? nullptr : std::make_unique<RosterProfileT>());
        break;
      }
      auto& backends = roster->profiles.back();
      if (backends == nullptr) break;
      auto address = std::make_unique<AddressT>();
      address->backend = d.text(3);
      const auto blob = d.some(3);
      address->blob.assign(blob.begin(), blob.end());
      backends->backends.push_back(std::move(address));
      break;
    }
    default: {
      const auto bytes = d.some(60);
      const size_t at = d.upto(static_cast<uint32_t>(roster->addresses.size()));
      roster->addresses.resize(at);
      roster->addresses.insert(roster->addresses.end(), bytes.begin(), bytes.end());
    }
  }
}

void must_be_the_same(const std::vector<hvd::Member>& a, const std::vector<hvd::Member>& b) {
  HVD_PROMISE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    HVD_PROMISE(a[i].worker == b[i].worker && a[i].host == b[i].host && a[i].local_rank == b[i].local_rank);
    HVD_PROMISE(a[i].has_state == b[i].has_state && a[i].revision == b[i].revision &&
                a[i].digest == b[i].digest);
    HVD_PROMISE(a[i].offers.size() == b[i].offers.size());
    for (size_t o = 0; o < a[i].offers.size(); ++o) {
      HVD_PROMISE(a[i].offers[o].backend == b[i].offers[o].backend);
      HVD_PROMISE(a[i].offers[o].address == b[i].offers[o].address);
    }
  }
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions d(data);
  const Known* const base = d.coin() ? &known() : nullptr;
  std::vector<hvd::Member> told = known().members;
  if (d.coin()) told.erase(told.begin() + d.upto(3));
  if (d.coin()) told.push_back(member(9, "d", 9));
  const auto roster = write_roster(told, base);
  while (!d.over()) change(d, roster.get());
  std::vector<hvd::Member> members;
  try {
    members = read_roster(*roster, base);
  } catch (const Error&) { return; }
  must_be_the_same(members, read_roster(*write_roster(members, base), base));
}

std::vector<Bytes> seeds() {
  return {
      {0, 0, 0},
      {1, 1, 2, 1},
      {1, 0, 1, 9, 8, 0, 20, 3, 1, 1, 1, 0},  // other addresses
      {0, 1, 1, 0, 1, 3, 2, 3, 2, 9, 4, 1, 'x', 4, 0, 6, 1, 1, 1, 0, 7, 0, 1},
      {1, 0, 0, 1, 1, 4, 6, 7, 7, 2, 1, 7, 0, 4},
  };
}

}  // namespace hvd::fuzz

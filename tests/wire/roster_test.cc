// Rosters: whatever becomes of a job's members, who knows one generation reads the next one from what has
// changed.
#include "wire/roster.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "base/status.h"
#include "wire/messages.h"

namespace hvd::wire {
namespace {

using Random = std::mt19937_64;

bool operator==(const hvd::Member& a, const hvd::Member& b) {
  return a.worker == b.worker && a.host == b.host && a.offers == b.offers && a.local_rank == b.local_rank &&
         a.has_state == b.has_state && a.revision == b.revision && a.digest == b.digest;
}

bool same(const std::vector<hvd::Member>& a, const std::vector<hvd::Member>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const hvd::Member& x, const hvd::Member& y) { return x == y; });
}

std::vector<uint8_t> bytes(size_t size, Random& random) {
  std::vector<uint8_t> result(size);
  for (uint8_t& b : result) b = static_cast<uint8_t>(random() >> 56);
  return result;
}

hvd::Member member(uint64_t worker, std::string host, std::vector<uint8_t> address) {
  hvd::Member m;
  m.worker = worker;
  m.host = std::move(host);
  m.offers.push_back({"tcp", "", 1, 2, 3, std::move(address)});
  return m;
}

/// Through the bytes of an envelope, as a worker gets it.
RosterT carried(std::unique_ptr<RosterT> roster, size_t* ret_size = nullptr) {
  AssignmentT assignment;
  assignment.roster = std::move(roster);
  const Bytes encoded = encode(envelope("job", 1, 1, std::move(assignment)));
  if (ret_size != nullptr) *ret_size = encoded.size();
  EnvelopeT message = decode(encoded);
  EXPECT_NE(message.body.AsAssignment()->roster, nullptr);
  return std::move(*message.body.AsAssignment()->roster);
}

void set_local_ranks(std::vector<hvd::Member>* members, bool falling) {
  std::map<std::string, int32_t> on_host;
  if (falling) std::reverse(members->begin(), members->end());
  for (hvd::Member& m : *members) m.local_rank = on_host[m.host]++;
  if (falling) std::reverse(members->begin(), members->end());
}

TEST(Roster, SaysTheSameAsItsMembersWhateverBecomesOfThem) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
    uint64_t next_worker = 1;
    const auto newcomer = [&] {
      hvd::Member m = member(next_worker++, "host-" + std::to_string(below(5)), bytes(below(200), random));
      if (below(3) == 0) m.offers.push_back({"nccl", "", 2, 2, 2, bytes(below(40), random)});
      if (below(4) == 0) m.offers.push_back({"mpi", "no MPI", 0, 0, 0, {}});
      return m;
    };
    Known known;
    for (uint64_t generation = 1; generation <= 8; ++generation) {
      std::vector<hvd::Member> members = known.members;
      for (size_t gone = below(4); gone > 0 && !members.empty(); --gone)
        members.erase(members.begin() + static_cast<ptrdiff_t>(below(members.size())));
      for (size_t come = below(6); come > 0 || members.empty(); come -= come > 0 ? 1 : 0)
        members.push_back(newcomer());
      if (below(4) == 0) std::shuffle(members.begin(), members.end(), random);
      const uint64_t revision = random();
      for (hvd::Member& m : members) {
        m.has_state = below(8) != 0;
        m.revision = m.has_state ? revision : 0;
        m.digest = {m.revision * 3, 5};
        std::vector<uint8_t>& address = m.offers[0].address;
        switch (below(6)) {
          case 0: address = bytes(below(200), random); break;
          case 1: address.resize(below(address.size() + 1)); break;
          case 2: address.insert(address.end(), 7, 9); break;
          case 3:
            for (size_t i = 0; i < 9 && !address.empty(); ++i) address[below(address.size())] ^= 0x55;
            break;
          default: break;
        }
      }
      set_local_ranks(&members, below(5) == 0);
      EXPECT_TRUE(same(read_roster(carried(write_roster(members, nullptr)), nullptr), members)) << seed;
      EXPECT_TRUE(same(read_roster(carried(write_roster(members, nullptr)), &known), members)) << seed;
      if (known.generation != 0) {
        EXPECT_TRUE(same(read_roster(carried(write_roster(members, &known)), &known), members)) << seed;
      }
      known = {generation, members};
    }
  }
}

TEST(Roster, WhatHasNotChangedTakesNoBytes) {
  Random random(1);
  Known known{4, {}};
  for (uint64_t worker = 1; worker <= 10000; ++worker)
    known.members.push_back(member(worker, "node-" + std::to_string(worker / 8), bytes(130, random)));
  set_local_ranks(&known.members, false);
  std::vector<hvd::Member> members = known.members;
  members.erase(members.begin() + 777);
  for (hvd::Member& m : members) m.revision = 12;
  set_local_ranks(&members, false);
  size_t size = 0;
  EXPECT_TRUE(same(read_roster(carried(write_roster(members, &known), &size), &known), members));
  EXPECT_LT(size, 500u);
  // One that has a new address adds that one.
  members[5000].offers[0].address = bytes(130, random);
  EXPECT_TRUE(same(read_roster(carried(write_roster(members, &known), &size), &known), members));
  EXPECT_LT(size, 700u);
}

TEST(Roster, OfAnUnknownGenerationIsRefused) {
  const Known known{4, {member(1, "a", {1, 2})}};
  const RosterT roster = carried(write_roster(known.members, &known));
  const Known other{5, known.members};
  for (const Known* wrong : {static_cast<const Known*>(nullptr), &other}) {
    try {
      read_roster(roster, wrong);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.status().code, HVD_INVALID);
      EXPECT_NE(std::string(e.what()).find("goes on from generation 4"), std::string::npos) << e.what();
    }
  }
}

/// Whatever stands in it, it is refused or read: nothing outside of it is, and no more memory is taken than
/// it may be.
TEST(Roster, DamageIsRefusedOrRead) {
  Random random(3);
  Known known{4, {}};
  for (uint64_t worker = 1; worker <= 20; ++worker)
    known.members.push_back(member(worker, worker % 2 == 0 ? "a" : "b", bytes(50, random)));
  set_local_ranks(&known.members, false);
  std::vector<hvd::Member> members = known.members;
  members.erase(members.begin() + 3);
  for (hvd::Member& m : members) m.offers[0].address[20] ^= 1;
  members.push_back(member(50, "c", bytes(50, random)));
  set_local_ranks(&members, false);
  int refused = 0, read = 0;
  for (int round = 0; round < 20000; ++round) {
    RosterT roster = *write_roster(members, round % 3 == 0 ? nullptr : &known);
    const auto below = [&random](size_t n) { return static_cast<size_t>(random() % n); };
    const auto number = [&] {
      const uint32_t numbers[] = {0, 1, 2, 19, 20, 21, 0x7fffffff, 0x80000000, 0xffffffff};
      return numbers[below(std::size(numbers))];
    };
    switch (below(8)) {
      case 0:
        roster.runs[below(roster.runs.size())] = RosterRun(static_cast<int32_t>(number()), number());
        break;
      case 1: roster.standings[0] = RosterStanding(1, wire::Digest(), number(), true); break;
      case 2: roster.profile_of[0] = RosterProfileRun(number(), number()); break;
      case 3: roster.host_of[below(roster.host_of.size())] = number(); break;
      case 4: roster.addresses.resize(below(roster.addresses.size() + 20)); break;
      case 5: roster.workers.resize(below(roster.workers.size() + 3)); break;
      case 6: roster.local_ranks.resize(below(30)); break;
      default:
        for (int i = 0; i < 3; ++i)
          roster.addresses[below(roster.addresses.size())] = static_cast<uint8_t>(random() >> 56);
    }
    try {
      read_roster(roster, &known);
      ++read;
    } catch (const Error& e) {
      EXPECT_EQ(e.status().code, HVD_INVALID) << e.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 5000);
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace hvd::wire

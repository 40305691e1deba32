#include "modules/mpi/join.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

namespace hvdmpi {
namespace {

#ifndef OPEN_MPI
constexpr const char* kPatience = "5";  // seconds
#endif

uint64_t mixed(uint64_t a, uint64_t b) {  // splitmix64's finish
  uint64_t x = a + 0x9e3779b97f4a7c15ULL * (b + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The worlds' numbers are random: so is what comes of two.
WorldId id_of_both(const WorldId& a, const WorldId& b, uint64_t generation) {
  uint64_t words[4];
  std::memcpy(words, a.data(), 16);
  std::memcpy(words + 2, b.data(), 16);
  uint64_t result[2] = {generation, ~generation};
  for (const uint64_t word : words) {
    result[0] = mixed(result[0], word);
    result[1] = mixed(result[1] ^ result[0], word);
  }
  WorldId id;
  std::memcpy(id.data(), result, id.size());
  return id;
}

void sort(std::vector<Team>& teams) {
  std::sort(teams.begin(), teams.end(), [](const Team& a, const Team& b) {
    if (a.members.size() != b.members.size()) return a.members.size() > b.members.size();
    return *std::min_element(a.members.begin(), a.members.end()) <
           *std::min_element(b.members.begin(), b.members.end());
  });
}

}  // namespace

std::vector<uint8_t> Address::encode(const std::array<uint8_t, 40>& links) const {
  std::vector<uint8_t> bytes(kSize);
  std::copy(links.begin(), links.end(), bytes.begin());
  std::copy(world.begin(), world.end(), bytes.begin() + 40);
  std::memcpy(bytes.data() + 56, &rank, 4);
  std::memcpy(bytes.data() + 60, &size, 4);
  return bytes;
}

Address Address::decode(const void* data, size_t size) {
  if (data == nullptr || size != kSize) {
    throw Failure(HVD_INVALID,
                  "an address of " + std::to_string(size) + " bytes: expected " + std::to_string(kSize));
  }
  const auto* bytes = static_cast<const uint8_t*>(data);
  Address address;
  std::copy(bytes + 40, bytes + 56, address.world.begin());
  std::memcpy(&address.rank, bytes + 56, 4);
  std::memcpy(&address.size, bytes + 60, 4);
  if (address.rank < 0 || address.rank >= address.size) {
    throw Failure(HVD_INVALID, "an address with rank " + std::to_string(address.rank) + " of " +
                                   std::to_string(address.size));
  }
  return address;
}

std::vector<Team> teams_of(const std::vector<Address>& members) {
  std::map<WorldId, std::vector<std::pair<int, int>>> worlds;  // (rank in the world, member)
  for (size_t member = 0; member < members.size(); ++member) {
    worlds[members[member].world].emplace_back(members[member].rank, static_cast<int>(member));
  }
  std::vector<Team> teams;
  for (auto& [id, who] : worlds) {
    std::sort(who.begin(), who.end());
    Team team;
    team.world = id;
    for (const auto& [world_rank, member] : who) {
      if (!team.world_ranks.empty() && team.world_ranks.back() == world_rank) {
        throw Failure(HVD_INVALID,
                      "members " + std::to_string(team.members.back()) + " and " + std::to_string(member) +
                          " claim the same place among MPI's processes",
                      member);
      }
      team.world_ranks.push_back(world_rank);
      team.members.push_back(member);
    }
    teams.push_back(std::move(team));
  }
  sort(teams);
  return teams;
}

std::vector<Pairing> pair_up(size_t teams) {
  std::vector<Pairing> pairs;
  for (size_t i = 0; i < teams; i += 2) {
    pairs.push_back({static_cast<int>(i), i + 1 < teams ? static_cast<int>(i + 1) : -1});
  }
  return pairs;
}

std::vector<Team> joined(const std::vector<Team>& teams, uint64_t generation) {
  std::vector<Team> result;
  for (const Pairing& pair : pair_up(teams.size())) {
    Team team = teams[static_cast<size_t>(pair.accepting)];
    team.world_ranks.clear();
    if (pair.connecting >= 0) {
      const Team& other = teams[static_cast<size_t>(pair.connecting)];
      team.world = id_of_both(team.world, other.world, generation);
      team.members.insert(team.members.end(), other.members.begin(), other.members.end());
    }
    result.push_back(std::move(team));
  }
  sort(result);
  return result;
}

size_t team_of(const std::vector<Team>& teams, int member) {
  size_t index = 0;
  for (const Team& team : teams) {
    if (std::find(team.members.begin(), team.members.end(), member) != team.members.end()) return index;
    ++index;
  }
  throw Failure(HVD_INTERNAL, "member " + std::to_string(member) + " is in no team");
}

MPI_Comm make_group(MPI_Comm parent, const std::vector<int>& ranks, int tag) {
  MPI_Group all = MPI_GROUP_NULL;
  MPI_Group some = MPI_GROUP_NULL;
  check(MPI_Comm_group(parent, &all), "MPI_Comm_group");
  check(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
  MPI_Comm result = MPI_COMM_NULL;
  check(MPI_Comm_create_group(parent, some, tag, &result), "MPI_Comm_create_group");
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  check(MPI_Comm_set_errhandler(result, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return result;
}

void acquaint(MPI_Comm comm) {
#ifdef OPEN_MPI
  static_cast<void>(comm);
#else
  // MPICH makes a connection as there is something to send, and waits for it inside whatever call that is, under its
  // lock. Alltoallv is the one that has every pair talk to each other directly.
  int size = 0;
  MPI_Comm_size(comm, &size);
  const auto count = static_cast<size_t>(size);
  const std::vector<char> mine(count);
  std::vector<char> theirs(count);
  const std::vector<int> ones(count, 1);
  std::vector<int> offsets(count);
  std::iota(offsets.begin(), offsets.end(), 0);
  check(MPI_Alltoallv(mine.data(), ones.data(), offsets.data(), MPI_CHAR, theirs.data(), ones.data(),
                      offsets.data(), MPI_CHAR, comm),
        "MPI_Alltoallv");
#endif
}

std::string open_port() {
  char name[MPI_MAX_PORT_NAME] = {};
  check(MPI_Open_port(MPI_INFO_NULL, name), "MPI_Open_port");
  return name;
}

MPI_Comm join(MPI_Comm team, bool accepts, const std::string& port) {
  MPI_Comm both = MPI_COMM_NULL;
  MPI_Info info = MPI_INFO_NULL;
#ifndef OPEN_MPI
  // While it waits for the other side MPICH keeps its lock, and with it all calls of this process. Both sides are here
  // at the same time, but for one that dies.
  MPI_Info_create(&info);
  MPI_Info_set(info, "timeout", kPatience);
#endif
  const int code = accepts ? MPI_Comm_accept(port.c_str(), info, 0, team, &both)
                           : MPI_Comm_connect(port.c_str(), info, 0, team, &both);
#ifndef OPEN_MPI
  MPI_Info_free(&info);
  if (accepts && !port.empty()) MPI_Close_port(port.c_str());
#endif
  check(code, accepts ? "MPI_Comm_accept" : "MPI_Comm_connect");
  check(MPI_Comm_set_errhandler(both, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Comm merged = MPI_COMM_NULL;
  check(MPI_Intercomm_merge(both, accepts ? 0 : 1, &merged), "MPI_Intercomm_merge");
  check(MPI_Comm_set_errhandler(merged, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  Runtime::get().discard(both);
  return merged;
}

}  // namespace hvdmpi

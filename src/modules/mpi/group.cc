// Who shares a communicator, and how a generation gets its own.
#include "modules/mpi/group.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

namespace hvdmpi {

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
  sort_teams(teams);
  return teams;
}

void sort_teams(std::vector<Team>& teams) {
  std::sort(teams.begin(), teams.end(), [](const Team& a, const Team& b) {
    if (a.members.size() != b.members.size()) return a.members.size() > b.members.size();
    return *std::min_element(a.members.begin(), a.members.end()) <
           *std::min_element(b.members.begin(), b.members.end());
  });
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
  // MPICH makes a connection as there is something to send, and waits for it inside whatever call that is,
  // under its lock. Alltoallv is the one that has every pair talk to each other directly.
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

}  // namespace hvdmpi

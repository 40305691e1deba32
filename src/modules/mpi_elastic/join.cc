// Pairs worlds up, and joins two of them by accept and connect.
#include "modules/mpi_elastic/join.h"

#include <algorithm>
#include <cstring>
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

}  // namespace

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
  sort_teams(result);
  return result;
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
  // While it waits for the other side MPICH keeps its lock, and with it all calls of this process. Both sides
  // are here at the same time, but for one that dies.
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

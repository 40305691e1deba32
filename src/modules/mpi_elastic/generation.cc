// Joins the worlds of a generation's members.
#include "modules/mpi_elastic/generation.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "modules/mpi_elastic/join.h"
#include "modules/mpi_elastic/runtime.h"

namespace hvdmpi {

std::string ElasticGeneration::port_of(Joining& joining, int round, int pair, bool accepts) {
  const std::string key = "mpi.port." + std::to_string(round) + "." + std::to_string(pair);
  hvd_error error = HVD_ERROR_INIT;
  if (accepts) {
    auto port = std::make_shared<std::string>();
    const std::shared_ptr<Call> call = Call::start([port] { *port = open_port(); });
    try {
      wait(*call, "open a port", joining.deadline);
    } catch (...) {
      call->abandon();
      throw;
    }
    call->rethrow();
    if (host().kv_set(host().context, number(), key.c_str(), port->data(), port->size(), &error) != HVD_OK) {
      throw Failure(error.status, std::string("the port of MPI could not be told: ") + error.message);
    }
    return *port;
  }
  char name[MPI_MAX_PORT_NAME + 1] = {};
  size_t size = MPI_MAX_PORT_NAME;
  const auto left = std::chrono::nanoseconds(joining.deadline - Clock::now());
  const hvd_status status = host().kv_get(host().context, number(), key.c_str(),
                                          std::max<int64_t>(left.count(), 1), name, &size, &error);
  if (status != HVD_OK) throw Failure(status, std::string("the port of MPI did not come: ") + error.message);
  return {name, std::min<size_t>(size, MPI_MAX_PORT_NAME)};
}

void ElasticGeneration::join_teams(Joining& joining, const std::shared_ptr<MPI_Comm>& comm) {
  std::vector<Team>& teams = joining.teams;
  for (int round = 0; teams.size() > 1; ++round) {
    const std::vector<Pairing> pairs = pair_up(teams.size());
    const auto mine = static_cast<int>(team_of(teams, rank()));
    const Team& team = teams[static_cast<size_t>(mine)];
    const Pairing& pair = pairs[static_cast<size_t>(mine / 2)];
    const bool accepts = pair.accepting == mine;
    std::function<void()> body = [] {};
    MPI_Comm before = *comm;
    if (pair.connecting >= 0) {
      std::string port;
      if (team.members[0] == rank()) port = port_of(joining, round, mine / 2, accepts);
      body = [comm, before, accepts, port] { *comm = join(before, accepts, port); };
    }
    const std::vector<Team> after = joined(teams, number());
    const Team& with = after[team_of(after, rank())];
    const auto adopt = [&] {
      if (pair.connecting < 0) return;
      const auto place = std::find(with.members.begin(), with.members.end(), rank());
      Runtime::get().adopt({with.world, static_cast<int>(place - with.members.begin()),
                            static_cast<int>(with.members.size()), *comm},
                           static_cast<int>(with.members.size() - team.members.size()));
      if (round == 0) Runtime::get().discard(before);
    };
    perform(joining,
            "join rank " + std::to_string(teams[static_cast<size_t>(pair.accepting)].members[0]) +
                "'s processes in MPI",
            body, adopt);
    teams = after;
  }
}

// Says once a process whether it lives through its peers' deaths.
void ElasticGeneration::formed() {
  static std::atomic<bool> told{false};
  if (told.exchange(true)) return;
  const ElasticRuntime& runtime = ElasticRuntime::get();
  if (runtime.shielded())
    return host().log(host().context, HVD_LOG_DEBUG, "MPI's TCP is kept from the deaths of peers");
  const std::string text =
      "MPI's TCP can't be kept from the deaths of peers (" + runtime.why_not() +
      " was found, or its calls can't be reached): a death may make MPI useless in other workers as well, which then "
      "have to start anew";
  host().log(host().context, HVD_LOG_WARNING, text.c_str());
}

}  // namespace hvdmpi

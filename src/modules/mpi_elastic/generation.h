// A generation of processes that were started apart: what they don't share they join.
#pragma once

#include <memory>
#include <string>

#include "modules/mpi/generation.h"

namespace hvdmpi {

class ElasticGeneration final : public Generation {
 public:
  using Generation::Generation;

 protected:
  void join_teams(Joining& joining, const std::shared_ptr<MPI_Comm>& comm) override;
  void formed() override;

 private:
  std::string port_of(Joining& joining, int round, int pair, bool accepts);
};

}  // namespace hvdmpi

// MPI in a process that mpirun or srun started together with others. It is begun as the program itself would
// begin it, and nothing of the process is changed: no variable of its environment, no signal, no exit
// handler.
#pragma once

#include "modules/mpi/runtime.h"

namespace hvdmpi {

class LaunchedRuntime final : public Runtime {
 public:
  static LaunchedRuntime& get();

  void check_teams(const std::vector<size_t>& teams) const override;  // the launcher's processes are one team

  /// The instance is closed. MPICH is finalized now: a process that ends without has failed, says its
  /// launcher, which hears of the end before any destructor is called. Waits some seconds for the others, who
  /// have to come to it too.
  void closed();
  /// The process ends, and MPI with it if all was peace: a launcher takes a process that ends without
  /// MPI_Finalize for one that failed, and ends the others. Waits for the others, as MPI_Finalize does.
  void finish();

 protected:
  void initialize(int* ret_level) override;
  MPI_Comm begun() override { return MPI_COMM_WORLD; }

 private:
  std::shared_ptr<Call> finalize();

  std::mutex ending_mutex_;
  std::shared_ptr<Call> ending_;
};

}  // namespace hvdmpi

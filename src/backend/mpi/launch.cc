#include "launch.h"

#include <mpi.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

namespace hvdmpi {
namespace {

bool has_environment(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && *value != 0;
}

bool of_driver() { return has_environment("HVD_DRIVER"); }

bool starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

bool of_a_launcher(const std::string& name) {
  if (starts(name, "PMIX_MCA_") || name == "OMPI_MCA_orte_tmpdir_base") return false;
  for (const char* prefix :
       {"PMIX_", "PMI_", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_MCA_ess", "OMPI_MCA_orte_"}) {
    if (starts(name, prefix)) return true;
  }
  // Open MPI knows Slurm by the older two of its names for job and nodes, and a step of srun by its number: programs
  // that want to know their job have the newer ones.
  for (const char* exact : {"OMPI_MCA_pmix", "OMPI_MCA_initial_wdir", "SLURM_JOBID", "SLURM_NODELIST",
                            "SLURM_STEP_ID", "SLURM_STEPID"}) {
    if (name == exact) return true;
  }
  return false;
}

}  // namespace

bool launched_in_group() {
  if (of_driver()) return false;
#ifdef OPEN_MPI
  return has_environment("OMPI_COMM_WORLD_SIZE") || has_environment("PMIX_RANK") ||
         has_environment("PMI_RANK");
#else
  return has_environment("PMI_RANK") || has_environment("PMI_SIZE") || has_environment("PMIX_RANK");
#endif
}

void forget_launcher() {
  if (!of_driver()) return;
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    std::string name = text.substr(0, text.find('='));
    if (of_a_launcher(name)) names.push_back(std::move(name));
  }
  for (const std::string& name : names) unsetenv(name.c_str());
}

}  // namespace hvdmpi

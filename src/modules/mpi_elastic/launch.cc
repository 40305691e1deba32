// Forgets a launcher's variables, and removes what MPI leaves.
#include "modules/mpi_elastic/launch.h"

#include <mpi.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include "modules/mpi/runtime.h"
#include "modules/mpi_elastic/environment.h"

namespace hvdmpi {
namespace {

bool starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

// The driver takes away much of the same before it starts a worker: see helper/rules.cc. This is about what a
// launcher between the two has left.
bool of_a_launcher(const std::string& name) {
  if (starts(name, "PMIX_MCA_") || name == "OMPI_MCA_orte_tmpdir_base") return false;
  for (const char* prefix :
       {"PMIX_", "PMI_", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_MCA_ess", "OMPI_MCA_orte_"}) {
    if (starts(name, prefix)) return true;
  }
  // Open MPI knows Slurm by the older two of its names for job and nodes, and a step of srun by its number:
  // programs that want to know their job have the newer ones.
  for (const char* exact : {"OMPI_MCA_pmix", "OMPI_MCA_initial_wdir", "SLURM_JOBID", "SLURM_NODELIST",
                            "SLURM_STEP_ID", "SLURM_STEPID"}) {
    if (name == exact) return true;
  }
  return false;
}

}  // namespace

void forget_launcher() {
  if (environment("HVD_DRIVER").empty()) return;
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    std::string name = text.substr(0, text.find('='));
    if (of_a_launcher(name)) names.push_back(std::move(name));
  }
  for (const std::string& name : names) unset_variable(name);
}

void remove_segments() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t at = line.find("/dev/shm/mpich_shm_");
    if (at != std::string::npos) unlink(line.c_str() + at);  // mapped more than once: the first one does it
  }
}

SessionHold::SessionHold() {  // NOLINT(modernize-use-equals-default): of Open MPI 4 alone
#if defined(OPEN_MPI) && OMPI_MAJOR_VERSION < 5
  constexpr int kAttempts = 1000;  // each is undone by a daemon that starts at that very moment
  std::string base = "/tmp";
  for (const char* variable : {"TMP", "TEMP", "TMPDIR", "OMPI_MCA_orte_tmpdir_base"}) {
    if (!environment(variable).empty()) base = environment(variable);
  }
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) return;
  const std::string name = host;
  const std::string common =
      base + "/ompi." + name.substr(0, name.find('.')) + "." + std::to_string(geteuid());
  const std::string own = common + "/hvd." + std::to_string(getpid());
  for (int i = 0; i < kAttempts; ++i) {
    mkdir(common.c_str(), S_IRWXU);
    if (mkdir(own.c_str(), S_IRWXU) == 0) path_ = own;
    if (!path_.empty() || errno != ENOENT) return;
  }
#endif
}

SessionHold::~SessionHold() {
  if (!path_.empty()) rmdir(path_.c_str());
}

}  // namespace hvdmpi

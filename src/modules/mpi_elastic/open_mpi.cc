// Open MPI in a process that was started apart. What it expects of its environment: OMPI_MCA_pmix_server_uri
// says where the job's ompi-server is ("file:<path>" or its URI), and orted is in PATH or beside libmpi. From
// Open MPI 5 on HVD_PMIX_SERVER says how to reach hvd-pmix-server (see pmix_client.h), and HVD_WORKER who
// this is.
//
// Processes started apart talk over TCP, on one host too: Open MPI finds out who shares a host only for those
// of one launch.
#include <dlfcn.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>

#include "modules/mpi_elastic/calls.h"
#include "modules/mpi_elastic/environment.h"
#include "modules/mpi_elastic/launch.h"
#include "modules/mpi_elastic/pmix_client.h"
#include "modules/mpi_elastic/runtime.h"
#include "modules/mpi_elastic/shield.h"

namespace hvdmpi {
namespace {

// Version 4 meets through ompi-server, later ones through hvd-pmix-server.
constexpr bool kPmixServer = OMPI_MAJOR_VERSION >= 5;
constexpr const char* kServer = kPmixServer ? "HVD_PMIX_SERVER" : "OMPI_MCA_pmix_server_uri";

// Open MPI 4 starts its daemon beside a process that no launcher has started, and ends the process if it
// can't.
bool daemon_found() {
  std::string folders = environment("PATH");
  if (folders.empty()) folders = "/usr/local/bin:/usr/bin";
  for (const char* variable : {"OPAL_PREFIX", "OPAL_BINDIR"}) {
    const std::string folder = environment(variable);
    if (!folder.empty()) folders += ":" + folder + ":" + folder + "/bin";
  }
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &info) != 0) {
    std::string folder = info.dli_fname;
    for (int up = 0; up < 4 && folder.find('/') != std::string::npos; ++up) {
      folder.resize(folder.rfind('/'));
      folders += ":" + folder + "/bin";
    }
  }
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    if (access((folders.substr(begin, end - begin) + "/orted").c_str(), X_OK) == 0) return true;
    begin = end + 1;
  }
  return false;
}

// Those of Open MPI's libraries that set variables. Version 4 loads libpmix with a component as it begins.
void keep_readers_from_loaded() {
  for (const char* component : {"libopen-pal.so", "libopen-rte.so", "libpmix.so", "mca_pmix_"})
    keep_readers(component);
}

void* kept_dlopen(const char* file, int flags) {
  void* const library = dlopen(file, flags);
  if (library != nullptr) keep_readers_from_loaded();
  return library;
}

void keep_readers_from_open_mpi() {
  keep_readers_from_loaded();
  replace_calls("libopen-pal.so", {{"dlopen", address_of(&kept_dlopen)}});
}

class OpenMpi final : public ElasticRuntime {
 public:
  void check_teams(const std::vector<size_t>& teams) const override {
    if (teams.size() == 1 || !environment(kServer).empty()) return;
    throw Failure(
        HVD_UNAVAILABLE,
        "the processes of this generation were started apart, and MPI joins them by way of a server: "
        "OMPI_MCA_pmix_server_uri (Open MPI 4) or HVD_PMIX_SERVER (5 and later) has to say where it is");
  }

  bool shielded() const override { return shielded_; }
  std::string why_not() const override { return "no component btl/tcp of Open MPI"; }

 protected:
  void set_variables(const std::string& interface, const std::string&) override {
    if (kPmixServer && !environment(kServer).empty()) {
      const std::string worker = environment("HVD_WORKER");
      meet_through(environment(kServer), worker.empty() ? "1" : worker);
    }
    if (!kPmixServer && !daemon_found()) {
      throw Failure(
          HVD_UNAVAILABLE,
          "Open MPI needs its daemon 'orted' (Debian: openmpi-bin) in a process that mpirun did not start, "
          "and it was found neither in PATH nor beside libmpi");
    }
    set_default("OMPI_MCA_opal_signal", "");  // contract 10: no signal handlers
    set_default("OMPI_MCA_mpi_yield_when_idle", "1");
    set_default("UCX_ERROR_SIGNALS", "");
    set_default("OMPI_MCA_hwloc_base_binding_policy", "none");
    set_default("OMPI_MCA_pml", "ob1");                        // the one that lives through a peer's death
    if (kPmixServer) set_default("OMPI_MCA_btl", "self,tcp");  // the ones from which deaths are kept
    set_default("OMPI_MCA_memory", "^patcher");
    // A process that dies as it joins keeps others waiting for what it did not tell, and with them all
    // joining in their processes: 7 s with these, 5 minutes or for ever without. Open MPI 4's daemon looks
    // every max_wait seconds, takes twice that off what is left (10 s for addresses, exchange_timeout for all
    // else), and sees only a second step that ends at 0 or below.
    set_default("OMPI_MCA_pmix_server_max_wait", "7");
    set_default("OMPI_MCA_pmix_base_exchange_timeout", "14");
    // By name: large messages hang where Open MPI 4.1 is given the address alone. The driver names the
    // loopback where it is enough.
    if (const std::string name = interface_of(interface); !name.empty()) {
      set_default("OMPI_MCA_btl_tcp_if_include", name);
      set_default("OMPI_MCA_oob_tcp_if_include", name);
    }
  }

  void initialize(int* ret_level) override {
    keep_readers_from_open_mpi();
    const SessionHold hold;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, ret_level), "MPI_Init_thread");
  }

  MPI_Comm begun() override {
    shielded_ = shield_tcp();
    if (kPmixServer && !environment(kServer).empty()) outlive_server();
    return MPI_COMM_SELF;
  }

 private:
  std::atomic<bool> shielded_{false};
};

}  // namespace

ElasticRuntime& ElasticRuntime::get() {
  static auto* const runtime = new OpenMpi;
  return *runtime;
}

}  // namespace hvdmpi

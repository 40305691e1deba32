// MPICH in a process that was started apart: it launches itself (pmi.h), and talks by libfabric's TCP.
#include <mpi.h>
#include <signal.h>

#include <cstring>

#include "modules/mpi_elastic/launch.h"
#include "modules/mpi_elastic/pmi.h"
#include "modules/mpi_elastic/runtime.h"
#include "modules/mpi_elastic/shield.h"

namespace hvdmpi {
namespace {

// Limits of MPICH (5.0): 1024 processes that were started apart, where it does not look, and 99 of them on
// one side of a join, where it ends the process.
constexpr int kMostMet = 1000;
constexpr size_t kMostInATeam = 100;

// MPICH takes this signal for itself and says what it does when it comes: contract 10.
class KeepSignal {
 public:
  KeepSignal() { sigaction(SIGUSR1, nullptr, &before_); }
  ~KeepSignal() { sigaction(SIGUSR1, &before_, nullptr); }
  KeepSignal(const KeepSignal&) = delete;
  KeepSignal& operator=(const KeepSignal&) = delete;

 private:
  struct sigaction before_ {};
};

std::string why_apart(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  char version[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  MPI_Get_library_version(version, &length);
  const std::string first(version, std::strcspn(version, "\n"));
  const char* const last = std::strrchr(text, '\n');  // of a stack of calls the innermost
  return "this MPICH can't join processes that were started apart, as an elastic job needs it: MPICH 5 with libfabric can, "
         "and here is '" +
         first + "', which says: " + (last == nullptr ? text : last + 1);
}

class Mpich final : public ElasticRuntime {
 public:
  void check_teams(const std::vector<size_t>&) const override {}

  void check_joining(const std::vector<size_t>& teams) override {
    if (teams.size() == 1) return;
    if (!apart_.empty()) throw Failure(HVD_UNAVAILABLE, apart_);
    if (const int others = met(); others > kMostMet) {
      throw Failure(HVD_UNAVAILABLE,
                    "this process has met " + std::to_string(others) +
                        " others in MPICH, which counts no further: it has to be started anew");
    }
    for (const size_t team : teams) {
      if (team < kMostInATeam) continue;
      throw Failure(HVD_UNAVAILABLE, "MPICH joins fewer than " + std::to_string(kMostInATeam) +
                                         " processes that were started apart to others, and here are " +
                                         std::to_string(team));
    }
  }

  bool shielded() const override { return shielded_; }
  std::string why_not() const override { return "no libfabric under MPICH"; }

 protected:
  void set_variables(const std::string&, const std::string& links) override {
    // Over UCX it does not connect all who join one after the other (5.0.2), and its ports are longer than
    // they may be on a host with several interfaces.
    set_default("MPIR_CVAR_CH4_NETMOD", "ofi");
    set_default("FI_PROVIDER", "tcp");
    if (const std::string name = interface_of(links); !name.empty()) set_default("FI_TCP_IFACE", name);
  }

  void initialize(int* ret_level) override {
    const KeepSignal keep;
    const OwnLauncher launcher;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, ret_level), "MPI_Init_thread");
    remove_segments();
  }

  MPI_Comm begun() override {
    shielded_ = shield_fabric();
    char port[MPI_MAX_PORT_NAME] = {};
    const int code = MPI_Open_port(MPI_INFO_NULL, port);
    if (code == MPI_SUCCESS) {
      MPI_Close_port(port);
    } else {
      apart_ = why_apart(code);
    }
    return MPI_COMM_SELF;
  }

 private:
  std::atomic<bool> shielded_{false};
  std::string apart_;  // why MPI can't join processes, "" if it can; written before anybody asks
};

}  // namespace

ElasticRuntime& ElasticRuntime::get() {
  static auto* const runtime = new Mpich;
  return *runtime;
}

}  // namespace hvdmpi

#include "driver/mpi_rules.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace hvd::driver {
namespace {

constexpr const char* kServer = "OMPI_MCA_pmix_server_uri";
constexpr const char* kPmixServer = "HVD_PMIX_SERVER";
constexpr std::string_view kPmixLine = "hvd-pmix: ";
constexpr const char* kSessions = "OMPI_MCA_orte_tmpdir_base";
constexpr const char* kShared = "OMPI_MCA_btl_vader_backing_directory";
constexpr const char* kShared5 = "OMPI_MCA_btl_sm_backing_directory";
constexpr const char* kLoopback =
    "lo";  // by name: large messages hang where Open MPI 4.1 is given an address

// How Open MPI behaves inside somebody else's process.
constexpr std::pair<const char*, const char*> kManners[] = {
    {"OMPI_MCA_mpi_yield_when_idle", "1"},  // who waits gives way: there may be more ranks than cores
    {"OMPI_MCA_hwloc_base_binding_policy", "none"},    // a singleton is on its own and would take core 0
    {"OMPI_MCA_opal_signal", ""},                      // no handlers for SIGSEGV and the like (contract 10)
    {"OMPI_MCA_mpi_warn_on_fork", "0"},                // data loaders fork
    {"OMPI_MCA_btl_base_warn_component_unused", "0"},  // nothing on stderr for hardware that is not there
    {"OMPI_MCA_mca_base_component_show_load_errors", "0"},
    {"OMPI_MCA_mpi_abort_print_stack", "0"},
};

std::string name_of(const std::string& entry) { return entry.substr(0, entry.find('=')); }

bool starts(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

bool starts_with_any(const std::string& name, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* p) { return starts(name, p); });
}

// A process in an allocation of Slurm takes itself for one that srun has started: Open MPI 4 knows Slurm by the older
// two of its names for job and nodes, and a step by its number. Programs that want to know their job have the newer
// names.
bool of_slurm(const std::string& name) {
  return name == "SLURM_JOBID" || name == "SLURM_NODELIST" || name == "SLURM_STEP_ID" ||
         name == "SLURM_STEPID";
}

// A process under mpirun or srun finds its daemon through these.
bool of_a_launcher(const std::string& name) {
  return starts_with_any(name, {"PMIX_", "PMI_", "OMPI_COMM_WORLD_", "OMPI_UNIVERSE_", "OMPI_MCA_ess",
                                "OMPI_MCA_orte_", "OMPI_MCA_pmix", "OMPI_MCA_initial_wdir", "PRTE_LAUNCHED"});
}

}  // namespace

std::string backend_of_workers(const std::string& option, const std::vector<std::string>& environment) {
  constexpr std::string_view kName = "HVD_BACKEND=";
  std::string backend = option;
  for (const std::string& entry : environment) {
    if (starts(entry, kName)) backend = entry.substr(kName.size());
  }
  return backend;
}

bool meets_through_ompi_server(std::string_view backend) {
  // A list names one for each kind of memory.
  for (size_t begin = 0; begin <= backend.size();) {
    const size_t end = std::min(backend.find_first_of(",+ ", begin), backend.size());
    if (backend.substr(begin, end - begin) == "mpi") return true;
    begin = end + 1;
  }
  return false;
}

bool meets_through_pmix_server(std::string_view version) {
  constexpr std::string_view kName = "Open MPI ";
  if (!starts(version, kName)) return false;
  int major = 0;
  for (size_t i = kName.size(); i < version.size() && version[i] >= '0' && version[i] <= '9'; ++i)
    major = 10 * major + (version[i] - '0');
  return major >= 5;
}

std::string pmix_address(std::string_view listen) {
  const std::string_view address = listen.substr(0, listen.rfind(':'));
  if (starts(address, "127.") || address == "[::1]" || address == "localhost") return "";
  // PMIx listens at one address, of IPv4, and takes no names.
  const bool number = address.find_first_not_of("0123456789.") == std::string_view::npos;
  return number && address != "0.0.0.0" ? std::string(address) : "any";
}

const char* server_variable(bool pmix) { return pmix ? kPmixServer : kServer; }

std::vector<std::string> mpi_worker_environment(const MpiPlace& place,
                                                const std::function<bool(const std::string& name)>& is_set) {
  std::vector<std::string> result;
  const auto add = [&](const std::string& name, const std::string& value) {
    if (!is_set(name)) result.push_back(name + "=" + value);
  };
  if (!place.uri.empty()) result.push_back(std::string(server_variable(place.pmix)) + "=" + place.uri);
  if (!place.shared.empty()) {
    add(kSessions, place.sessions);
    add(place.pmix ? kShared5 : kShared, place.shared);
  }
  if (place.loopback) {
    // Of either pair the user may have set the one that excludes this one.
    for (const std::string what : {"oob", "btl"}) {
      const std::string include = "OMPI_MCA_" + what + "_tcp_if_include";
      if (!is_set("OMPI_MCA_" + what + "_tcp_if_exclude")) add(include, kLoopback);
    }
  }
  for (const auto& [name, value] : kManners) add(name, value);
  return result;
}

std::vector<std::string> without_launcher(const std::vector<std::string>& environment) {
  const bool launched = std::any_of(environment.begin(), environment.end(), [](const std::string& entry) {
    return starts_with_any(entry, {"OMPI_COMM_WORLD_SIZE=", "PMIX_RANK=", "PMI_RANK=", "PMI_SIZE="});
  });
  std::vector<std::string> result;
  std::copy_if(environment.begin(), environment.end(), std::back_inserter(result),
               [&](const std::string& entry) {
                 const std::string name = name_of(entry);
                 return !of_slurm(name) && !(launched && of_a_launcher(name));
               });
  return result;
}

std::vector<std::string> ompi_server_environment(const MpiPlace& place,
                                                 const std::vector<std::string>& environment) {
  std::vector<std::string> result = without_launcher(environment);
  std::erase_if(result, [](const std::string& entry) {
    const std::string name = name_of(entry);
    return name == kServer || name == kPmixServer || name == kSessions;
  });
  const bool chosen = std::any_of(result.begin(), result.end(), [](const std::string& entry) {
    return starts(entry, "OMPI_MCA_oob_tcp_if_");
  });
  if (!place.sessions.empty()) result.push_back(std::string(kSessions) + "=" + place.sessions);
  if (place.loopback && !chosen) result.push_back(std::string("OMPI_MCA_oob_tcp_if_include=") + kLoopback);
  return result;
}

std::optional<std::string> uri_of(std::string_view line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r' || line.back() == ' '))
    line.remove_suffix(1);
  if (starts(line, kPmixLine)) return std::string(line.substr(kPmixLine.size()));
  // Two numbers, then addresses.
  size_t i = 0;
  const auto digits = [&] {
    const size_t begin = i;
    while (i < line.size() && line[i] >= '0' && line[i] <= '9') ++i;
    return i > begin;
  };
  if (!digits() || i >= line.size() || line[i++] != '.' || !digits()) return std::nullopt;
  if (line.substr(i, 4) != ";tcp") return std::nullopt;
  return std::string(line);
}

}  // namespace hvd::driver

// Which variables Open MPI's workers and their server get.
#include "modules/mpi_elastic/helper/rules.h"

#include <algorithm>
#include <initializer_list>

namespace hvdmpi::helper {
namespace {

constexpr const char* kServer = "OMPI_MCA_pmix_server_uri";
constexpr const char* kPmixServer = "HVD_PMIX_SERVER";
constexpr std::string_view kPmixLine = "hvd-pmix: ";
constexpr const char* kSessions = "OMPI_MCA_orte_tmpdir_base";
constexpr const char* kShared = "OMPI_MCA_btl_vader_backing_directory";
constexpr const char* kShared5 = "OMPI_MCA_btl_sm_backing_directory";
constexpr const char* kSecret = "HVD_SECRET";
constexpr const char* kLoopback =
    "lo";  // by name: large messages hang where Open MPI 4.1 is given an address

std::string name_of(const std::string& entry) { return entry.substr(0, entry.find('=')); }

bool is_set(const Strings& environment, const std::string& name) {
  return std::any_of(environment.begin(), environment.end(),
                     [&](const std::string& entry) { return name_of(entry) == name; });
}

bool starts(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

bool starts_with_any(const std::string& name, std::initializer_list<const char*> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* p) { return starts(name, p); });
}

// A process in an allocation of Slurm takes itself for one that srun has started: Open MPI 4 knows Slurm by
// the older two of its names for job and nodes, and a step by its number. Programs that want to know their
// job have the newer names.
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

bool on_loopback(std::string_view listen) {
  return starts(listen, "127.") || starts(listen, "[::1]:") || starts(listen, "localhost:");
}

std::string pmix_address(std::string_view listen) {
  const std::string_view address = listen.substr(0, listen.rfind(':'));
  if (on_loopback(listen)) return "";
  // PMIx listens at one address, of IPv4, and takes no names.
  const bool number = address.find_first_not_of("0123456789.") == std::string_view::npos;
  return number && address != "0.0.0.0" ? std::string(address) : "any";
}

const char* server_variable(bool pmix) { return pmix ? kPmixServer : kServer; }

bool names_server(const Strings& environment, bool pmix) {
  return is_set(environment, server_variable(pmix)) && !(pmix && is_set(environment, "HVD_WORKER"));
}

Strings worker_variables(const Place& place, const Strings& environment) {
  Strings lines;
  const auto add = [&](const char* how, const std::string& name, const std::string& value) {
    lines.push_back(std::string(how) + " " + name + "=" + value);
  };
  if (!place.uri.empty()) add("set", server_variable(place.pmix), place.uri);
  if (!place.shared.empty()) {
    add("default", kSessions, place.sessions);
    add("default", place.pmix ? kShared5 : kShared, place.shared);
  }
  if (place.loopback) {
    // Of either pair the user may have set the one that excludes this one.
    for (const std::string what : {"oob", "btl"}) {
      if (!is_set(environment, "OMPI_MCA_" + what + "_tcp_if_exclude"))
        add("default", "OMPI_MCA_" + what + "_tcp_if_include", kLoopback);
    }
  }
  return lines;
}

Strings left_by_launcher(const Strings& environment) {
  const bool launched = std::any_of(environment.begin(), environment.end(), [](const std::string& entry) {
    return starts_with_any(entry, {"OMPI_COMM_WORLD_SIZE=", "PMIX_RANK=", "PMI_RANK=", "PMI_SIZE="});
  });
  Strings names;
  for (const std::string& entry : environment) {
    const std::string name = name_of(entry);
    if (of_slurm(name) || (launched && of_a_launcher(name))) names.push_back(name);
  }
  return names;
}

Strings without_launcher(const Strings& environment) {
  const Strings left = left_by_launcher(environment);
  Strings result = environment;
  std::erase_if(result, [&](const std::string& entry) {
    return std::find(left.begin(), left.end(), name_of(entry)) != left.end();
  });
  return result;
}

Strings server_environment(const Place& place, const Strings& environment) {
  Strings result = without_launcher(environment);
  std::erase_if(result, [](const std::string& entry) {
    const std::string name = name_of(entry);
    return name == kServer || name == kPmixServer || name == kSessions || name == kSecret;
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

}  // namespace hvdmpi::helper

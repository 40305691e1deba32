// Merges the environments of driver, agent and request.
#include "agent/environment.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/secret.h"

namespace hvd::agent {
namespace {

std::string name_of(const std::string& entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

bool is_of_host(const std::string& name) {
  constexpr std::string_view kNames[] = {"HOME",    "HOST",       "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD",
                                         "PWD",     "SHELL",      "SHLVL",    "TMPDIR",  "TTY",  "USER",
                                         "DISPLAY", "XAUTHORITY", "WINDOWID", "TMUX",    "STY",  "_"};
  constexpr std::string_view kPrefixes[] = {"SSH_",        "XDG_",  "DBUS_", "SLURM",    "PMI",
                                            "KUBERNETES_", "SUDO_", "LSB_",  "LS_JOBPID"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view p) { return name.starts_with(p); });
}

std::vector<std::string> sendable(const std::vector<std::string>& environment) {
  std::vector<std::string> result;
  for (const std::string& entry : environment) {
    if (!tells_secret(entry) && !entry.starts_with("BASH_FUNC_")) result.push_back(entry);
  }
  return result;
}

std::vector<std::string> worker_environment(const std::vector<std::string>& base,
                                            const std::vector<std::string>& own, bool own_only,
                                            const std::vector<std::string>& request,
                                            const std::string& driver) {
  std::map<std::string, std::string> merged;
  for (const std::string& entry : base) {
    if (!is_of_host(name_of(entry))) merged[name_of(entry)] = entry;
  }
  for (const std::string& entry : own) {
    const std::string name = name_of(entry);
    if (!tells_secret(entry) && (own_only || is_of_host(name))) merged[name] = entry;
  }
  for (const std::string& entry : request) merged[name_of(entry)] = entry;
  merged["HVD_DRIVER"] = "HVD_DRIVER=" + driver;
  std::vector<std::string> result;
  for (auto& [name, entry] : merged) result.push_back(std::move(entry));
  return result;
}

std::string path_of(const std::vector<std::string>& environment) {
  for (const std::string& entry : environment) {
    if (entry.starts_with("PATH=")) return entry.substr(5);
  }
  return "/usr/local/bin:/usr/bin:/bin";
}

}  // namespace hvd::agent

// Which backends a worker uses, and why.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/loader.h"
#include "base/member.h"
#include "base/modules.h"
#include "base/options.h"

namespace hvd::selection {

/// The launcher that has started this process together with others, by the manifests of the modules that are
/// installed, and the modules that know it in order: the one that option backend names if it names one, since
/// a process can't belong to two. Nothing for a worker that a driver of this library or torchrun has started,
/// whatever their own environment was.
struct Launcher {
  std::string variable;  // that tells of it
  std::vector<std::string> modules;
  int64_t processes = 0;  // that it says it has started; 0: it doesn't say
};
std::optional<Launcher> find_launcher(const Options& options);
std::optional<Launcher> find_launcher(const Options& options, const std::vector<Manifest>& manifests);

/// "nccl, gloo" to its names; throws Error(HVD_INVALID) for what is none.
std::vector<std::string> parse_backends(const std::string& text);

/// Opens what option `backend` names: one backend for host memory and those for device memory beside it,
/// behind one instance that is named after the one for host memory (docs/backends.md). name: "auto", "self"
/// (a worker that is alone), a name, or several separated by commas. Looks for lib/hvd/<abi>/libhvd_<name>.so
/// beside the library, then in the install directory, then in option plugin_path. module_options (key, value)
/// go to the modules: interface, route, segment_bytes, encrypt, checksum. On failure the message lists every
/// path tried with its reason (HVD_UNAVAILABLE).
Status open(const Options& options, const std::string& name,
            const std::vector<std::pair<std::string, std::string>>& module_options,
            backend::HostHandlers handlers, std::unique_ptr<backend::Instance>* ret_instance);

/// backend::survey. A process that a launcher has started loads no module that serves another's name, which
/// is for elastic jobs: that one is reported, with this as the reason.
std::vector<backend::Report> survey(const Options& options);

/// What must be the same on all workers, of one whose instance gave these offers.
std::vector<Setting> settings_of(const std::vector<Offer>& offers);

}  // namespace hvd::selection

// Where backend modules lie, and what each says of itself in a text file beside it, <module>.manifest, to
// those who do not load it: docs/backends.md describes the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"

namespace hvd {

/// Beside the library, where it was installed, then option plugin_path.
std::vector<std::string> module_directories(const Options& options);

/// What becomes of an environment, by lines of text.
class EnvironmentRules {
 public:
  /// "set NAME=value" whatever is there, "default NAME=value" unless NAME is set, "unset NAME". False: the
  /// line is none of these or names no variable.
  bool take(std::string_view line);
  void append(const EnvironmentRules& later);

  /// `environment` ("NAME=value") without what is unset.
  std::vector<std::string> without(const std::vector<std::string>& environment) const;
  /// What is added to `environment`.
  std::vector<std::string> added_to(const std::vector<std::string>& environment) const;

 private:
  enum class Kind { kSet, kDefault, kUnset };
  struct Rule {
    Kind kind;
    std::string name, entry;
  };
  std::vector<Rule> rules_;  // of one name the last counts
};

struct Manifest {
  /// A launcher that the module knows: who finds `variable` in its environment was started by it, together
  /// with as many as `count` says. The lowest order is the innermost launcher.
  struct Launcher {
    int64_t order = 0;
    std::string variable, count;
  };
  std::string module;  // by the file's name
  std::string directory;
  std::string serves;          // the backend that this module is where no launcher started the process; ""
  bool host_memory = false;    // serves host memory
  std::string helper;          // program in `directory` that a driver runs beside the job; ""
  std::string needs;           // what a job with it needs installed, for people
  EnvironmentRules variables;  // of workers
  std::vector<Launcher> launchers;
};

/// `text` of <module>.manifest. Unknown words are left to later versions.
Manifest parse_manifest(const std::string& module, const std::string& directory, std::string_view text);

/// All there are, in the order of module_directories and of their names; of one name the first. Files that
/// can't be read, or are longer than 64 KiB, are left out.
std::vector<Manifest> read_manifests(const Options& options);

/// The one that serves backend `name` to processes that no launcher started, or null.
const Manifest* serving(const std::vector<Manifest>& manifests, std::string_view name);

/// "nccl, gloo" to its names, unchecked.
std::vector<std::string> names_in_list(std::string_view text);

}  // namespace hvd

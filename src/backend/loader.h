// Where modules are looked for, and what is found there.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/module.h"

namespace hvd::backend {

/// "gloo" to "libhvd_gloo.so".
std::string module_file(const std::string& name);

/// Names of all modules in the directories, each once, in order of directory and name.
std::vector<std::string> module_names(const Options& options);

/// Letters, digits, '_' and '-'.
bool is_module_name(const std::string& name);

/// Loads the first libhvd_<name>.so of the directories that loads. HVD_UNAVAILABLE lists every path tried
/// with its reason.
Status find_module(const Options& options, const std::string& name, std::shared_ptr<Module>* ret_module);

/// One module file, or the built-in backend.
struct Report {
  Description description;  // what can be said of it: the name as its file has it if it does not load
  int32_t max_instances = 0;
  uint32_t abi_version = 0;  // 0: none in common
  Status status;             // why it is not usable
};

/// Why a module is not to be loaded here; "": it may be.
using WhyNot = std::function<std::string(const std::string& module)>;

/// Everything there is, in the order of the search. Loads what loads, but for what `why_not` (may be absent)
/// has a reason for.
std::vector<Report> survey(const Options& options, const WhyNot& why_not);

}  // namespace hvd::backend

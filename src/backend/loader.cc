// Which modules there are, in which order they are tried, and what is said when none will do.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "backend/local/instance.h"
#include "backend/module.h"

namespace hvd::backend {
namespace {

namespace fs = std::filesystem;
constexpr const char* kPrefix = "libhvd_";
constexpr const char* kSuffix = ".so";

void anchor() {}

// The directory of the object that this code is part of: libhvd.so, or the program that links the core.
fs::path own_directory() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&anchor), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code code;
  const fs::path real = fs::canonical(info.dli_fname, code);
  return code ? fs::path() : real.parent_path();
}

std::vector<fs::path> search_path(const Options& options) {
  std::vector<fs::path> path;
  const auto add = [&](const fs::path& directory) {
    if (!directory.empty() && std::find(path.begin(), path.end(), directory) == path.end())
      path.push_back(directory);
  };
  if (const fs::path own = own_directory(); !own.empty()) {
    add(own / "hvd" / std::to_string(HVD_ABI_VERSION));
  }
  add(HVD_INSTALL_MODULE_DIR);
  const std::string text = options.string("plugin_path");
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    add(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return path;
}

fs::path file_of(const std::string& name) { return kPrefix + name + kSuffix; }

// All modules in the directories but gloo's, each directory's by name.
std::vector<fs::path> others(const std::vector<fs::path>& directories) {
  std::vector<fs::path> found;
  for (const fs::path& directory : directories) {
    std::vector<fs::path> here;
    std::error_code code;
    for (fs::directory_iterator entry(directory, code), end; !code && entry != end; entry.increment(code)) {
      const std::string file = entry->path().filename();
      if (file.starts_with(kPrefix) && file.ends_with(kSuffix) && file != file_of("gloo"))
        here.push_back(entry->path());
    }
    std::sort(here.begin(), here.end());
    found.insert(found.end(), here.begin(), here.end());
  }
  return found;
}

bool is_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

// Option local. What carries no messages, or serves no host memory, can't be left out of a generation.
bool shares_memory(const std::string& option, const Description& backend) {
  const bool able = backend.messages && (backend.memories >> HVD_MEMORY_HOST & 1) != 0;
  return able && (option == "on" || (option == "auto" && !backend.local));
}

}  // namespace

Status open(const Options& options, const std::string& name,
            const std::vector<std::pair<std::string, std::string>>& module_options, HostHandlers handlers,
            std::unique_ptr<Instance>* ret_instance) {
  if (name == "self") {
    *ret_instance = make_self_instance();
    return {};
  }
  if (!is_name(name)) {
    return {HVD_INVALID,
            fmt::format("backend '{}': expected auto, self or a name of letters, digits, '_' and '-'", name)};
  }
  const std::string local = options.string("local");
  if (local != "auto" && local != "on" && local != "off") {
    return {HVD_INVALID, fmt::format("option local (HVD_LOCAL) is '{}': expected auto, on or off", local)};
  }
  const std::vector<fs::path> directories = search_path(options);
  std::vector<fs::path> candidates;
  for (const fs::path& directory : directories)
    candidates.push_back(directory / file_of(name == "auto" ? "gloo" : name));
  if (name == "auto") {
    const std::vector<fs::path> rest = others(directories);
    candidates.insert(candidates.end(), rest.begin(), rest.end());
  }
  std::string tried;
  for (const fs::path& path : candidates) {
    std::shared_ptr<Module> module;
    Status status = load_module(path, &module);
    if (status.ok()) status = open_instance(module, module_options, handlers, options.logger, ret_instance);
    if (status.ok()) {
      if (shares_memory(local, module->description)) {
        *ret_instance = local::make_instance(std::move(*ret_instance), std::move(handlers), options.logger);
      }
      options.logger->info("backend {} {} from {}: {}", module->description.name, module->description.version,
                           module->path, (*ret_instance)->detail());
      return {};
    }
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", path.string(), status.message);
  }
  return {HVD_UNAVAILABLE, fmt::format("no backend '{}' can be had. Tried {}", name, tried)};
}

}  // namespace hvd::backend

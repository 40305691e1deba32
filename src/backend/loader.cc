// Searches the plugin directories and explains every path that was tried.
#include "backend/loader.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/file.h"
#include "base/modules.h"

namespace hvd::backend {
namespace {

constexpr std::string_view kPrefix = "libhvd_";
constexpr std::string_view kSuffix = ".so";

// Names of the modules in one directory, in order.
std::vector<std::string> modules_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const std::string& file : names_in(directory)) {
    if (file.size() <= kPrefix.size() + kSuffix.size() || !file.starts_with(kPrefix) ||
        !file.ends_with(kSuffix)) {
      continue;
    }
    std::string name = file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size());
    if (is_module_name(name)) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

Report report_of(const Module& module) {
  return {module.description, module.table.description.max_instances, HVD_BACKEND_ABI_VERSION, {}};
}

// A module for device memory alone costs nothing to open, and only then says whether the libraries that it
// loads are there.
Status try_open(const Options& options, const std::shared_ptr<Module>& module) {
  if ((module->description.memories >> HVD_MEMORY_HOST & 1) != 0) return {};
  std::unique_ptr<Instance> instance;
  return open_instance(module, options.for_modules(), HostHandlers(), options.logger, &instance);
}

}  // namespace

std::string module_file(const std::string& name) { return fmt::format("{}{}{}", kPrefix, name, kSuffix); }

bool is_module_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

std::vector<std::string> module_names(const Options& options) {
  std::vector<std::string> names;
  for (const std::string& directory : module_directories(options)) {
    for (std::string& name : modules_in(directory)) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
    }
  }
  return names;
}

Status find_module(const Options& options, const std::string& name, std::shared_ptr<Module>* ret_module) {
  std::string tried;
  for (const std::string& directory : module_directories(options)) {
    const std::string path = path_in(directory, module_file(name));
    const Status status = load_module(path, ret_module);
    if (status.ok()) return {};
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", path, status.message);
  }
  return {HVD_UNAVAILABLE, tried};
}

std::vector<Report> survey(const Options& options, const WhyNot& why_not) {
  std::vector<Report> reports;
  Report& self = reports.emplace_back();
  self.description = make_self_instance()->description();
  self.abi_version = HVD_BACKEND_ABI_VERSION;
  std::vector<std::pair<std::string, std::string>> found;  // file, where: the first that loads is taken
  for (const std::string& directory : module_directories(options)) {
    for (const std::string& name : modules_in(directory)) {
      const std::string path = path_in(directory, module_file(name));
      const std::string real = real_path(path);
      const std::string shown = real.empty() ? path : real;
      if (std::any_of(reports.begin(), reports.end(),
                      [&](const Report& r) { return r.description.path == shown; })) {
        continue;  // the same file by another way
      }
      Report report;
      std::shared_ptr<Module> module;
      const std::string left_alone = why_not ? why_not(name) : "";
      report.status = left_alone.empty() ? load_module(path, &module) : Status(HVD_UNAVAILABLE, left_alone);
      if (report.status.ok()) {
        report = report_of(*module);
        report.status = try_open(options, module);
      } else {
        report.description.name = name;
        report.description.path = shown;
      }
      const auto before =
          std::find_if(found.begin(), found.end(), [&](const auto& f) { return f.first == name; });
      if (report.status.ok() && before != found.end()) {
        report.status = Status(HVD_UNAVAILABLE, fmt::format("{} comes before it", before->second));
      } else if (report.status.ok()) {
        found.emplace_back(name, shown);
      }
      reports.push_back(std::move(report));
    }
  }
  return reports;
}

}  // namespace hvd::backend

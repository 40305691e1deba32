// Reads manifests, and applies their rules to environments.
#include "base/modules.h"

#include <sys/stat.h>

#include <algorithm>
#include <charconv>

#include "base/file.h"
#include "base/own_directory.h"

namespace hvd {
namespace {

constexpr std::string_view kSuffix = ".manifest";
constexpr size_t kLongest = size_t{64} << 10;
constexpr std::string_view kBlanks = " \t\r";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

/// Takes the first word from `text`.
std::string_view take_word(std::string_view& text) {
  text = trimmed(text);
  const size_t end = std::min(text.find_first_of(kBlanks), text.size());
  const std::string_view word = text.substr(0, end);
  text = trimmed(text.substr(end));
  return word;
}

std::string_view name_of(std::string_view entry) { return entry.substr(0, entry.find('=')); }

bool has(const std::vector<std::string>& environment, std::string_view name) {
  return std::any_of(environment.begin(), environment.end(), [&](const std::string& entry) {
    return name_of(entry) == name && entry.size() > name.size();
  });
}

bool read_text(const std::string& path, std::string* ret_text) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  return read_file(path, kLongest + 1, ret_text) && ret_text->size() <= kLongest;
}

}  // namespace

std::vector<std::string> module_directories(const Options& options) {
  std::vector<std::string> path;
  const auto add = [&](const std::string& directory) {
    if (!directory.empty() && std::find(path.begin(), path.end(), directory) == path.end())
      path.push_back(directory);
  };
  if (const std::string own = own_directory(); !own.empty()) {
    add(path_in(path_in(own, "hvd"), std::to_string(HVD_ABI_VERSION)));
  }
#ifdef HVD_INSTALL_MODULE_DIR
  add(HVD_INSTALL_MODULE_DIR);
#endif
  const std::string text = options.string("plugin_path");
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(':', begin), text.size());
    add(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return path;
}

bool EnvironmentRules::take(std::string_view line) {
  const std::string_view word = take_word(line);
  const Kind kind = word == "set" ? Kind::kSet : word == "default" ? Kind::kDefault : Kind::kUnset;
  if (kind == Kind::kUnset && word != "unset") return false;
  const std::string_view name = name_of(line);
  if (name.empty() || (name.size() == line.size()) != (kind == Kind::kUnset)) return false;
  rules_.push_back({kind, std::string(name), std::string(line)});
  return true;
}

void EnvironmentRules::append(const EnvironmentRules& later) {
  rules_.insert(rules_.end(), later.rules_.begin(), later.rules_.end());
}

std::vector<std::string> EnvironmentRules::without(const std::vector<std::string>& environment) const {
  std::vector<std::string> result = environment;
  std::erase_if(result, [&](const std::string& entry) {
    return std::any_of(rules_.begin(), rules_.end(), [&](const Rule& rule) {
      return rule.kind == Kind::kUnset && rule.name == name_of(entry);
    });
  });
  return result;
}

std::vector<std::string> EnvironmentRules::added_to(const std::vector<std::string>& environment) const {
  const std::vector<std::string> given = without(environment);
  std::vector<std::string> result;
  for (const Rule& rule : rules_) {
    if (rule.kind == Kind::kUnset || (rule.kind == Kind::kDefault && has(given, rule.name))) continue;
    std::erase_if(result, [&](const std::string& entry) { return name_of(entry) == rule.name; });
    result.push_back(rule.entry);
  }
  return result;
}

Manifest parse_manifest(const std::string& module, const std::string& directory, std::string_view text) {
  Manifest manifest;
  manifest.module = module;
  manifest.directory = directory;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view rest = text.substr(begin, end - begin);
    begin = end + 1;
    if (manifest.variables.take(rest)) continue;
    const std::string_view word = take_word(rest);
    if (word == "serves") manifest.serves = rest;
    if (word == "memory") manifest.host_memory = rest == "host";
    if (word == "needs") manifest.needs = rest;
    // A file beside the manifest, and none that a path leads to.
    if (word == "helper" && rest.find('/') == std::string_view::npos) manifest.helper = rest;
    if (word == "launcher") {
      Manifest::Launcher launcher;
      const std::string_view order = take_word(rest);
      const auto [stop, code] = std::from_chars(order.data(), order.data() + order.size(), launcher.order);
      launcher.variable = take_word(rest);
      launcher.count = take_word(rest);
      if (code == std::errc() && stop == order.data() + order.size() && !launcher.variable.empty())
        manifest.launchers.push_back(std::move(launcher));
    }
  }
  return manifest;
}

std::vector<Manifest> read_manifests(const Options& options) {
  std::vector<Manifest> manifests;
  for (const std::string& directory : module_directories(options)) {
    std::vector<std::string> names;
    for (const std::string& file : names_in(directory)) {
      if (file.size() > kSuffix.size() && file.ends_with(kSuffix))
        names.push_back(file.substr(0, file.size() - kSuffix.size()));
    }
    std::sort(names.begin(), names.end());
    for (const std::string& name : names) {
      const bool known = std::any_of(manifests.begin(), manifests.end(),
                                     [&](const Manifest& manifest) { return manifest.module == name; });
      std::string text;
      if (!known && read_text(path_in(directory, name + std::string(kSuffix)), &text))
        manifests.push_back(parse_manifest(name, directory, text));
    }
  }
  return manifests;
}

const Manifest* serving(const std::vector<Manifest>& manifests, std::string_view name) {
  const auto found = std::find_if(manifests.begin(), manifests.end(), [&](const Manifest& manifest) {
    return !name.empty() &&
           (manifest.serves == name || (!manifest.serves.empty() && manifest.module == name));
  });
  return found == manifests.end() ? nullptr : &*found;
}

std::vector<std::string> names_in_list(std::string_view text) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    names.emplace_back(trimmed(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return names;
}

}  // namespace hvd

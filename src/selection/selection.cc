// Chooses backends by option, availability and launcher.
#include "selection/selection.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "backend/backend.h"
#include "backend/capabilities.h"
#include "backend/loader.h"
#include "base/file.h"
#include "local/address.h"
#include "local/instance.h"
#include "selection/composite.h"
#include "selection/relay.h"
#include "selection/world.h"

namespace hvd::selection {
namespace {

using ModuleOptions = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kForHosts[] = {"tcp", "gloo"};  // besides those whose manifest says so
constexpr const char* kForDevices[] = {"nccl"};

bool takes_host_memory(const backend::Description& backend) {
  return backend.messages && (backend.memories >> HVD_MEMORY_HOST & 1) != 0;
}

bool takes_device_memory(const backend::Description& backend) {
  return (backend.memories & ~(uint64_t{1} << HVD_MEMORY_HOST)) != 0;
}

template <class List>
bool contains(const List& list, const std::string& name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

int64_t count_in(const Options& options, const std::string& variable) {
  const std::string text = options.environment(variable).value_or("");
  int64_t count = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), count);
  return code == std::errc() && end == text.data() + text.size() ? count : 0;
}

/// Why a process that a launcher has started does not load this module; empty: it may.
std::string barred(const std::string& module, const std::vector<Manifest>& manifests,
                   const std::optional<Launcher>& launcher) {
  const auto manifest =
      std::find_if(manifests.begin(), manifests.end(), [&](const Manifest& m) { return m.module == module; });
  if (!launcher || manifest == manifests.end() || manifest->serves.empty()) return "";
  return fmt::format("it serves {} in elastic jobs alone, and is not loaded where {} is set",
                     manifest->serves, launcher->variable);
}

/// Opens backends one by one, and puts them together.
class Selection {
 public:
  Selection(const Options& options, const ModuleOptions& module_options, backend::HostHandlers handlers)
      : options_(options),
        module_options_(module_options),
        manifests_(read_manifests(options)),
        launcher_(find_launcher(options, manifests_)),
        relay_(std::make_shared<Relay>(std::move(handlers))),
        local_(options.string("local")) {
    if (local_ != "auto" && local_ != "on" && local_ != "messages" && local_ != "off") {
      throw Error(
          HVD_INVALID,
          fmt::format("option local (HVD_LOCAL) is '{}': expected auto, on, messages or off", local_));
    }
  }

  /// A worker that is alone needs no backend for host memory. What takes device memory copies it for commits.
  Status alone(const std::string& names) {
    const std::string reason = "this worker is alone";
    selected_.push_back({backend::make_self_instance(), reason, false});
    if (names == "auto" || names == "self") {
      look_for_devices();
      return {};
    }
    for (const std::string& name : parse_backends(names)) {
      if (contains(kForHosts, name) || of_host(name)) continue;  // nobody to reach
      std::shared_ptr<backend::Module> module;
      Status status = backend::find_module(options_, name, &module);
      if (status.ok() && !takes_device_memory(module->description)) continue;
      const std::string why = fmt::format("option backend is {}", names);
      if (status.ok()) status = add(module, why, true, false);
      if (!status.ok()) absent_.push_back({name, status.message});
    }
    note_missing_device(fmt::format("option backend is {}", names));
    return {};
  }

  Status automatic() {
    if (Status status = host_automatically("auto"); !status.ok()) return status;
    look_for_devices();
    return {};
  }

  /// Each of them has to be there.
  Status named(const std::string& text) {
    const std::string reason = fmt::format("option backend is {}", text);
    std::vector<std::pair<std::string, std::shared_ptr<backend::Module>>> modules;
    for (const std::string& name : parse_backends(text)) {
      if (const std::string why = barred(name, manifests_, launcher_); !why.empty())
        return {HVD_UNAVAILABLE, fmt::format("no backend '{}' can be had: {}", name, why)};
      auto& [_, module] = modules.emplace_back(name, nullptr);
      if (Status status = backend::find_module(options_, module_of(name), &module); !status.ok()) {
        return {HVD_UNAVAILABLE, fmt::format("no backend '{}' can be had. Tried {}", name, status.message)};
      }
    }
    // The first that takes host memory carries the messages and comes first: it takes no other's operations,
    // since what comes before it in the list takes other memory.
    const auto host = std::find_if(modules.begin(), modules.end(),
                                   [](const auto& m) { return takes_host_memory(m.second->description); });
    if (host == modules.end()) {
      const std::string why = fmt::format("option backend is {}, where none carries messages", text);
      if (Status status = host_automatically(why); !status.ok()) return status;
    } else {
      std::rotate(modules.begin(), host, host + 1);
    }
    for (const auto& [name, module] : modules) {
      if (Status status = add(module, reason, false, selected_.empty()); !status.ok()) {
        return {HVD_UNAVAILABLE,
                fmt::format("no backend '{}' can be had. Tried {}: {}", name, module->path, status.message)};
      }
    }
    note_missing_device(reason);
    return {};
  }

  std::unique_ptr<backend::Instance> finish() {
    for (const Selected& s : selected_) {
      const backend::Description& d = s.instance->description();
      if (d.path.empty()) continue;
      options_.logger->info("backend {} {} from {} ({}): {}", d.name, d.version, d.path, s.reason,
                            s.instance->detail());
    }
    for (const Absent& absent : absent_)
      options_.logger->debug("no backend {}: {}", absent.name, absent.reason);
    return make_composite(std::move(selected_), std::move(absent_), options_.logger);
  }

 private:
  Status host_automatically(const std::string& how) {
    std::vector<std::string> names;
    if (launcher_) names = launcher_->modules;
    const size_t of_launcher = names.size();
    const auto add_name = [&](const std::string& name) {
      if (!contains(names, name)) names.push_back(name);
    };
    add_name("tcp");
    add_name("gloo");
    const size_t known = names.size();
    std::string tried;
    for (size_t i = 0; i < names.size() || i == known; ++i) {
      if (i == known) {  // only now: reading directories takes time
        for (const std::string& name : backend::module_names(options_)) {
          if (!contains(kForDevices, name) && !serves_another(name)) add_name(name);
        }
        if (i == names.size()) break;
      }
      std::shared_ptr<backend::Module> module;
      Status status = backend::find_module(options_, module_of(names[i]), &module);
      // Several modules may know a variable; the launcher belongs to one of them.
      World world;
      if (status.ok() && i < of_launcher)
        status = World::of(module, launcher_->processes, options_.duration("init_timeout"), &world);
      if (status.ok()) {
        status = takes_host_memory(module->description)
                     ? add(module, how + ": " + reason_for(names[i], tried), false, true)
                     : Status(HVD_UNAVAILABLE, "it takes no host memory");
        if (status.ok()) return {};
        status.message = fmt::format("{}: {}", module->path, status.message);
      }
      tried += fmt::format("{}{}", tried.empty() ? "" : "; ", status.message);
      options_.logger->debug("no backend {}: {}", names[i], status.message);
    }
    return {HVD_UNAVAILABLE, fmt::format("no backend 'auto' can be had. Tried {}", tried)};
  }

  std::string reason_for(const std::string& name, const std::string& tried) const {
    if (launcher_ && contains(launcher_->modules, name))
      return fmt::format("{}, since {} is set", name, launcher_->variable);
    if (tried.empty()) return fmt::format("{}, since no launcher started this process", name);
    return fmt::format("{}, since nothing that comes before it can be had ({})", name, tried);
  }

  /// The module that is backend `name` here: another one than that of its name where no launcher of it
  /// started this process.
  std::string module_of(const std::string& name) const {
    if (launcher_ && contains(launcher_->modules, name)) return name;
    const Manifest* const manifest = serving(manifests_, name);
    return manifest == nullptr ? name : manifest->module;
  }

  bool serves_another(const std::string& module) const {
    return std::any_of(manifests_.begin(), manifests_.end(), [&](const Manifest& manifest) {
      return manifest.module == module && !manifest.serves.empty();
    });
  }

  bool of_host(const std::string& module) const {
    return std::any_of(manifests_.begin(), manifests_.end(), [&](const Manifest& manifest) {
      return manifest.module == module && manifest.host_memory;
    });
  }

  void look_for_devices() {
    for (const char* name : kForDevices) {
      std::shared_ptr<backend::Module> module;
      Status status(HVD_UNAVAILABLE, fmt::format("there is no {}", backend::module_file(name)));
      if (exists(name)) status = backend::find_module(options_, name, &module);
      if (status.ok()) status = add(module, fmt::format("auto: {} for device memory", name), true, false);
      if (!status.ok()) absent_.push_back({name, status.message});
    }
  }

  /// Why device memory is served by nobody, to be told to whoever has some.
  void note_missing_device(const std::string& reason) {
    const bool any =
        !absent_.empty() || std::any_of(selected_.begin(), selected_.end(), [](const Selected& s) {
          return takes_device_memory(s.instance->description());
        });
    if (!any) absent_.push_back({kForDevices[0], reason});
  }

  bool exists(const std::string& name) const {
    const auto directories = module_directories(options_);
    return std::any_of(directories.begin(), directories.end(), [&](const std::string& directory) {
      return ::access(path_in(directory, backend::module_file(name)).c_str(), F_OK) == 0;
    });
  }

  bool contains_name(const std::string& name) const {
    return std::any_of(selected_.begin(), selected_.end(),
                       [&](const Selected& s) { return s.instance->description().name == name; });
  }

  Status add(const std::shared_ptr<backend::Module>& module, const std::string& reason, bool optional,
             bool first) {
    const backend::Description& d = module->description;
    if (d.name == local::kRow) return {HVD_INVALID, "a backend calls itself local: expected another name"};
    if (contains_name(d.name)) {
      return {HVD_INVALID, fmt::format("two backends call themselves {}: expected one", d.name)};
    }
    const backend::HostHandlers handlers = Relay::handlers(relay_, d.name, first);
    std::unique_ptr<backend::Instance> instance;
    if (Status status = backend::open_instance(module, module_options_, handlers, options_.logger, &instance);
        !status.ok()) {
      return status;
    }
    // Option local. What carries no messages, or takes no host memory, can't be left out of a generation.
    if (first && takes_host_memory(d) && local_ != "off") {
      const bool messages_alone = local_ == "messages" || (local_ == "auto" && d.local);
      const auto shares = messages_alone ? local::Shares::kMessages : local::Shares::kAll;
      instance = local::make_instance(std::move(instance), handlers, options_.logger, shares);
    }
    selected_.push_back({std::move(instance), reason, optional});
    return {};
  }

  const Options& options_;
  const ModuleOptions& module_options_;
  const std::vector<Manifest> manifests_;
  const std::optional<Launcher> launcher_;
  const std::shared_ptr<Relay> relay_;
  const std::string local_;
  std::vector<Selected> selected_;
  std::vector<Absent> absent_;
};

}  // namespace

std::optional<Launcher> find_launcher(const Options& options, const std::vector<Manifest>& manifests) {
  // hvdrun may itself have been started by such a launcher, whose variables its workers inherit.
  if (const auto driver = options.environment("HVD_DRIVER"); driver && !driver->empty()) return std::nullopt;
  if (options.environment("TORCHELASTIC_RUN_ID")) return std::nullopt;
  std::vector<std::pair<Manifest::Launcher, std::string>> known;  // with its module
  std::vector<std::string> launched;                              // all modules that know launchers
  for (const Manifest& manifest : manifests) {
    if (!manifest.launchers.empty()) launched.push_back(manifest.module);
    for (const Manifest::Launcher& launcher : manifest.launchers) {
      if (options.environment(launcher.variable)) known.emplace_back(launcher, manifest.module);
    }
  }
  if (known.empty()) return std::nullopt;
  std::stable_sort(known.begin(), known.end(),
                   [](const auto& a, const auto& b) { return a.first.order < b.first.order; });
  const Manifest::Launcher& first = known.front().first;
  Launcher launcher{first.variable, {}, count_in(options, first.count)};
  for (const auto& [one, module] : known) {
    if (one.variable == first.variable) launcher.modules.push_back(module);
  }
  if (const std::string backend = options.string("backend"); backend != "auto") {
    std::vector<std::string> named = parse_backends(backend);
    std::erase_if(named, [&](const std::string& name) { return !contains(launched, name); });
    if (!named.empty()) launcher.modules = std::move(named);
  }
  return launcher;
}

std::optional<Launcher> find_launcher(const Options& options) {
  return find_launcher(options, read_manifests(options));
}

std::vector<backend::Report> survey(const Options& options) {
  const std::vector<Manifest> manifests = read_manifests(options);
  const std::optional<Launcher> launcher = find_launcher(options, manifests);
  return backend::survey(options,
                         [&](const std::string& module) { return barred(module, manifests, launcher); });
}

std::vector<std::string> parse_backends(const std::string& text) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const size_t first = std::min(text.find_first_not_of(' ', begin), end);
    const size_t last = text.find_last_not_of(' ', end - 1);
    const std::string name = first < end ? text.substr(first, last + 1 - first) : "";
    if (!backend::is_module_name(name) || name == "auto" || name == "self" || name == local::kRow ||
        contains(names, name)) {
      throw Error(HVD_INVALID,
                  fmt::format("backend '{}': expected auto, or names of letters, digits, '_' and '-', "
                              "each once and separated by commas",
                              text));
    }
    names.push_back(name);
    begin = end + 1;
  }
  return names;
}

std::vector<Setting> settings_of(const std::vector<Offer>& offers) {
  // Messages between workers have no version of their own.
  return {{"libhvd's version", HVD_VERSION_STRING}, {"option local (HVD_LOCAL)", local::shared_by(offers)}};
}

Status open(const Options& options, const std::string& name,
            const std::vector<std::pair<std::string, std::string>>& module_options,
            backend::HostHandlers handlers, std::unique_ptr<backend::Instance>* ret_instance) {
  try {
    Selection selection(options, module_options, std::move(handlers));
    Status status = name == "self"   ? selection.alone(options.string("backend"))
                    : name == "auto" ? selection.automatic()
                                     : selection.named(name);
    if (status.ok()) *ret_instance = selection.finish();
    return status;
  } catch (const Error& e) { return e.status(); }
}

}  // namespace hvd::selection

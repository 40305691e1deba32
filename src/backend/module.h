// A backend module that is loaded: the shared object and the table it filled in. Never unloaded.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "backend/backend.h"

namespace hvd::backend {

struct Module {
  std::string path;  // real path
  hvd_backend_table table{};
  Description description;
  std::atomic<int> instances{0};
};

/// Loads the module at `path`, or gives the one that is loaded already (the registry is the process's, by
/// real path). Thread-safe. On failure the message is the reason, without the path.
Status load_module(const std::string& path, std::shared_ptr<Module>* ret_module);

/// Opens an instance of a module. HVD_UNAVAILABLE beyond its max_instances.
Status open_instance(std::shared_ptr<Module> module,
                     const std::vector<std::pair<std::string, std::string>>& module_options,
                     HostHandlers handlers, LoggerPtr logger, std::unique_ptr<Instance>* ret_instance);

/// The built-in backend of a worker that is alone.
std::unique_ptr<Instance> make_self_instance();

}  // namespace hvd::backend

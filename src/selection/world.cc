// Asks the modules that know this process's launcher for rank and size.
#include "selection/world.h"

#include <fmt/format.h>

#include "backend/loader.h"
#include "selection/selection.h"

namespace hvd::selection {
namespace {

bool knows_world(const backend::Module& module) {
  const hvd_backend_table& table = module.table;
  return table.struct_size > offsetof(hvd_backend_table, world_broadcast) && table.world != nullptr &&
         table.world_broadcast != nullptr;
}

}  // namespace

Status World::open(const Options& options, Duration timeout, World* ret_world) {
  const auto launcher = find_launcher(options);
  if (!launcher) return {HVD_UNAVAILABLE, "no launcher started this process that a module here knows"};
  std::string tried;
  for (const std::string& name : launcher->modules) {
    std::shared_ptr<backend::Module> module;
    Status status = backend::find_module(options, name, &module);
    if (status.ok()) status = of(std::move(module), launcher->processes, timeout, ret_world);
    // Where it knows the group and fails, another one would not find it.
    if (status.code != HVD_UNAVAILABLE) return status;
    tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", name, status.message);
  }
  return {HVD_UNAVAILABLE, tried};
}

Status World::of(std::shared_ptr<backend::Module> module, int64_t processes, Duration timeout,
                 World* ret_world) {
  World world;
  if (!knows_world(*module)) {
    return {HVD_UNAVAILABLE, fmt::format("module {} does not know of launchers", module->description.name)};
  }
  hvd_error error = HVD_ERROR_INIT;
  const hvd_status code = module->table.world(timeout.count(), &world.rank_, &world.size_, &error);
  if (code != HVD_OK) return Status::from(code, error);
  if (world.size_ == 1 && processes > 1) {
    return {
        HVD_UNAVAILABLE,
        fmt::format(
            "{} ({}) began alone, though {} processes were started: their launcher belongs to another module",
            module->description.name, module->description.version, processes)};
  }
  world.module_ = std::move(module);
  *ret_world = std::move(world);
  return {};
}

Status World::broadcast(void* data, size_t size, Duration timeout) const {
  hvd_error error = HVD_ERROR_INIT;
  const hvd_status code = module_->table.world_broadcast(data, size, timeout.count(), &error);
  return code == HVD_OK ? Status() : Status::from(code, error);
}

}  // namespace hvd::selection

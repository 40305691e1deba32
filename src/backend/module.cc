// Loads a module, checks its version and its table.
#include "backend/module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>

#include "base/file.h"
#include "base/openssl.h"

namespace hvd::backend {
namespace {

// Modules are never unloaded: their threads and the destructors of their libraries may run at any time.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Module>> by_path;
};

Registry& registry() {
  static Registry* const instance = new Registry;  // outlives every static destructor that may still use it
  return *instance;
}

std::string dl_reason() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown reason";
}

Status check_table(const hvd_backend_table& table) {
  const hvd_backend_description& d = table.description;
  const auto bad = [](std::string why) { return Status(HVD_UNAVAILABLE, std::move(why)); };
  if (table.struct_size < offsetof(hvd_backend_table, detail)) {
    return bad(fmt::format("its table has struct_size {}, expected at least {}", table.struct_size,
                           offsetof(hvd_backend_table, detail)));
  }
  if (d.struct_size < sizeof(hvd_backend_description)) {
    return bad(fmt::format("its description has struct_size {}, expected at least {}", d.struct_size,
                           sizeof(hvd_backend_description)));
  }
  if (d.name == nullptr || *d.name == 0) return bad("its description has no name");
  if (d.version == nullptr) return bad("its description has no version");
  if (d.memories == 0 || d.dtypes == 0 || d.collectives == 0) {
    return bad(fmt::format("its description names no memories ({:#x}), dtypes ({:#x}) or collectives ({:#x})",
                           d.memories, d.dtypes, d.collectives));
  }
  if ((d.memories & (uint64_t{1} << HVD_MEMORY_HOST)) != 0 && d.messages == 0) {
    return bad("it serves host memory but sends no messages");
  }
  if (d.max_instances < 0) return bad(fmt::format("its max_instances is {}", d.max_instances));
  const std::pair<const char*, bool> functions[] = {
      {"open", table.open != nullptr},
      {"address", table.address != nullptr},
      {"connect", table.connect != nullptr},
      {"submit", table.submit != nullptr},
      {"send_message", table.send_message != nullptr || d.messages == 0},
      {"abort", table.abort != nullptr},
      {"disconnect", table.disconnect != nullptr},
      {"close", table.close != nullptr},
  };
  for (const auto& [name, present] : functions) {
    if (!present) return bad(fmt::format("function '{}' is missing from its table", name));
  }
  return {};
}

Status load(const std::string& path, std::shared_ptr<Module>* ret_module) {
  // A module that uses OpenSSL is to get the one that libhvd has, whatever a framework exports to the
  // process.
  const int deep = openssl_is_shadowed() ? RTLD_DEEPBIND : 0;
  void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | deep);
  if (handle == nullptr) return {HVD_UNAVAILABLE, dl_reason()};
  auto* const init = reinterpret_cast<hvd_backend_init_fn>(dlsym(handle, HVD_BACKEND_INIT_SYMBOL));
  if (init == nullptr) {
    return {HVD_UNAVAILABLE, fmt::format("it is no backend module: it has no {}", HVD_BACKEND_INIT_SYMBOL)};
  }
  auto module = std::make_shared<Module>();
  module->path = path;
  hvd_backend_table& table = module->table;
  table.struct_size = sizeof(table);
  hvd_error error = HVD_ERROR_INIT;
  hvd_status code = HVD_INTERNAL;
  try {
    code = init(HVD_BACKEND_ABI_VERSION, &table, &error);
  } catch (...) { return {HVD_UNAVAILABLE, fmt::format("{} threw an exception", HVD_BACKEND_INIT_SYMBOL)}; }
  if (code != HVD_OK) {
    std::string reason = error.message;
    if (reason.empty()) reason = fmt::format("{} gave {}", HVD_BACKEND_INIT_SYMBOL, status_name(code));
    if (code == HVD_UNSUPPORTED) {
      reason += fmt::format(" (this library speaks backend ABI version {})", HVD_BACKEND_ABI_VERSION);
    }
    return {code, reason};
  }
  if (Status status = check_table(table); !status.ok()) return status;
  const hvd_backend_description& d = table.description;
  module->description = {d.name,        d.version,       path,        d.memories, d.dtypes,
                         d.collectives, d.messages != 0, d.local != 0};
  *ret_module = std::move(module);
  return {};
}

}  // namespace

Status load_module(const std::string& path, std::shared_ptr<Module>* ret_module) {
  const std::string real = real_path(path);
  if (real.empty()) return {HVD_UNAVAILABLE, std::strerror(errno)};
  std::lock_guard lock(registry().mutex);
  auto& modules = registry().by_path;
  if (auto found = modules.find(real); found != modules.end()) {
    *ret_module = found->second;
    return {};
  }
  std::shared_ptr<Module> module;
  if (Status status = load(real, &module); !status.ok()) return status;
  modules[real] = module;
  *ret_module = std::move(module);
  return {};
}

}  // namespace hvd::backend

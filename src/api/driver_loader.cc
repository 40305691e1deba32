// Finds hvd-driver.so as modules are found, loads it once, and carries options to it.
#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>

#include "api/driver_object.h"
#include "base/file.h"
#include "base/modules.h"
#include "base/openssl.h"
#include "base/own_directory.h"
#include "base/status.h"

namespace hvd::api {
namespace {

std::atomic<const DriverObject*> loaded{nullptr};

/// Why it would not do; "" if it did.
std::string load(const std::string& path) {
  const std::string real = real_path(path);
  if (real.empty()) return std::strerror(errno);
  // As of a module: it gets the OpenSSL that libhvd has. Nothing is ever unloaded.
  const int deep = openssl_is_shadowed() ? RTLD_DEEPBIND : 0;
  void* const handle = dlopen(real.c_str(), RTLD_NOW | RTLD_LOCAL | deep);
  if (handle == nullptr) {
    const char* const reason = dlerror();
    return reason != nullptr ? reason : "unknown reason";
  }
  const auto enter = reinterpret_cast<DriverObjectFn>(dlsym(handle, kDriverObjectSymbol));
  if (enter == nullptr) return fmt::format("it has no {}", kDriverObjectSymbol);
  hvd_error error = HVD_ERROR_INIT;
  const DriverObject* const object = enter(HVD_VERSION_STRING, own_directory().c_str(), &error);
  if (object == nullptr) return error.message;
  if (object->struct_size != sizeof(DriverObject)) {
    return fmt::format("its table has struct_size {}: expected {}", object->struct_size,
                       sizeof(DriverObject));
  }
  loaded.store(object, std::memory_order_release);
  return {};
}

// The log's hook on the other side: the program's may have gone to other options by now.
void write_line(void* logger, hvd_log_level level, const char* line) {
  (*static_cast<const LoggerPtr*>(logger))->write(level, line);
}

void forget_logger(void* logger) { delete static_cast<const LoggerPtr*>(logger); }

}  // namespace

const DriverObject* loaded_driver_object() noexcept { return loaded.load(std::memory_order_acquire); }

const DriverObject& driver_object(const Options& options) {
  static std::mutex* const mutex = new std::mutex;  // for as long as the process
  if (const DriverObject* const object = loaded_driver_object()) return *object;
  const std::lock_guard lock(*mutex);
  std::string tried;
  for (const std::string& directory : module_directories(options)) {
    if (const DriverObject* const object = loaded_driver_object()) return *object;
    const std::string path = path_in(directory, kDriverObjectFile);
    const std::string reason = load(path);
    if (!reason.empty()) tried += fmt::format("{}{}: {}", tried.empty() ? "" : "; ", path, reason);
  }
  if (const DriverObject* const object = loaded_driver_object()) return *object;
  throw Error(HVD_UNAVAILABLE,
              fmt::format("drivers and agents need {}, which is installed with the library's modules ({})",
                          kDriverObjectFile, tried));
}

Carrier::Carrier(const Options& options) : values_(options.given()), logger_(options.logger) {
  for (const auto& [key, text] : values_) {
    keys_.push_back(key.c_str());
    texts_.push_back(text.c_str());
  }
}

CarriedOptions Carrier::carried() {
  const hvd_log_level level = logger_->level();
  CarriedOptions carried{keys_.size(), keys_.data(), texts_.data(), level, nullptr, nullptr, nullptr};
  if (level == HVD_LOG_OFF) return carried;
  carried.userdata = new LoggerPtr(std::move(logger_));
  carried.log = &write_line;
  carried.destroy = &forget_logger;
  return carried;
}

}  // namespace hvd::api

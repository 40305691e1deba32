// A new table of pointers for each change; the old one is left to whoever may be reading it.
#include "modules/mpi_elastic/environment.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "modules/mpi_elastic/calls.h"

namespace hvdmpi {
namespace {

std::mutex& writers() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

bool is_of(const char* entry, const std::string& name) {
  return std::strncmp(entry, name.c_str(), name.size()) == 0 && entry[name.size()] == '=';
}

void replace(const std::string& name, const char* entry) {
  std::vector<char*> kept;
  for (char** old = environ; old != nullptr && *old != nullptr; ++old) {
    if (!is_of(*old, name)) kept.push_back(*old);
  }
  auto* const table = new char*[kept.size() + 2];
  size_t count = 0;
  for (char* old : kept) table[count++] = old;
  if (entry != nullptr) table[count++] = const_cast<char*>(entry);
  table[count] = nullptr;
  std::atomic_thread_fence(std::memory_order_release);
  environ = table;
}

}  // namespace

void set_variable(const std::string& name, const std::string& value, bool overwrite) {
  const std::lock_guard<std::mutex> lock(writers());
  for (char** old = environ; old != nullptr && *old != nullptr; ++old) {
    if (is_of(*old, name) && !overwrite) return;
  }
  const std::string entry = name + "=" + value;
  auto* const kept = new char[entry.size() + 1];
  std::memcpy(kept, entry.c_str(), entry.size() + 1);
  replace(name, kept);
}

void unset_variable(const std::string& name) {
  const std::lock_guard<std::mutex> lock(writers());
  replace(name, nullptr);
}

namespace {

bool is_name(const char* name) {
  const bool valid = name != nullptr && *name != '\0' && std::strchr(name, '=') == nullptr;
  if (!valid) errno = EINVAL;
  return valid;
}

int kept_setenv(const char* name, const char* value, int overwrite) {
  if (!is_name(name)) return -1;
  set_variable(name, value == nullptr ? "" : value, overwrite != 0);
  return 0;
}

int kept_unsetenv(const char* name) {
  if (!is_name(name)) return -1;
  unset_variable(name);
  return 0;
}

// POSIX: the string itself becomes part of the environment.
int kept_putenv(char* entry) {
  const char* const equals = std::strchr(entry, '=');
  const std::string name(entry, equals == nullptr ? std::strlen(entry) : static_cast<size_t>(equals - entry));
  const std::lock_guard<std::mutex> lock(writers());
  replace(name, equals == nullptr ? nullptr : entry);
  return 0;
}

}  // namespace

void keep_readers(const char* component) {
  for (const Replacement& one :
       {Replacement{"setenv", address_of(&kept_setenv)}, Replacement{"unsetenv", address_of(&kept_unsetenv)},
        Replacement{"putenv", address_of(&kept_putenv)}})
    replace_calls(component, {one});  // a library may have none of them
}

}  // namespace hvdmpi

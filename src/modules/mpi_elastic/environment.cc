// A new table of pointers for each change; the old one is left to whoever may be reading it.
#include "modules/mpi_elastic/environment.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

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

}  // namespace hvdmpi

// Finds the file of this library by an address in it.
#include "base/own_directory.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <utility>

#include "base/file.h"

namespace hvd {
namespace {
const char kHere = 0;  // an address within this object

std::string& told() {
  static std::string* const directory = new std::string;  // outlives every thread that may ask
  return *directory;
}

/// The file that is mapped there, as the kernel knows it.
std::string mapped_file(const void* address) {
  std::string maps;
  if (!read_file("/proc/self/maps", size_t{16} << 20, &maps)) return {};
  for (size_t begin = 0; begin < maps.size();) {
    const size_t end = std::min(maps.find('\n', begin), maps.size());
    const char* const line = maps.data() + begin;
    uintptr_t low = 0, high = 0;
    const auto [dash, bad] = std::from_chars(line, maps.data() + end, low, 16);
    if (bad == std::errc() && *dash == '-') std::from_chars(dash + 1, maps.data() + end, high, 16);
    const auto wanted = reinterpret_cast<uintptr_t>(address);
    if (low <= wanted && wanted < high) {
      const size_t path = std::min(maps.find('/', begin), end);
      return maps.substr(path, end - path);
    }
    begin = end + 1;
  }
  return {};
}
}  // namespace

void set_own_directory(std::string directory) { told() = std::move(directory); }

std::string own_directory() {
  if (!told().empty()) return told();
  Dl_info info{};
  if (::dladdr(&kHere, &info) == 0 || info.dli_fname == nullptr) return {};
  // The linker has the name that it was given: for a program how it was called, for a library perhaps a path
  // from a directory that was the current one then.
  const std::string real = real_path(*info.dli_fname == '/' ? info.dli_fname : mapped_file(&kHere));
  return real.substr(0, std::max<size_t>(real.rfind('/') + 1, 2) - 1);
}

}  // namespace hvd

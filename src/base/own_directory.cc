// Finds the file of this library by an address in it.
#include "base/own_directory.h"

#include <dlfcn.h>

#include <algorithm>
#include <string>

#include "base/file.h"

namespace hvd {
namespace {
const char kHere = 0;  // an address within this object
}  // namespace

std::string own_directory() {
  Dl_info info{};
  if (::dladdr(&kHere, &info) == 0 || info.dli_fname == nullptr) return {};
  // For a program the linker has the name that it was called by, which PATH may have completed.
  const std::string real = real_path(*info.dli_fname == '/' ? info.dli_fname : "/proc/self/exe");
  return real.substr(0, std::max<size_t>(real.rfind('/') + 1, 2) - 1);
}

}  // namespace hvd

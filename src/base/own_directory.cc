// Finds the file of this library by an address in it.
#include "base/own_directory.h"

#include <dlfcn.h>

#include <system_error>

namespace hvd {
namespace {
const char kHere = 0;  // an address within this object
}  // namespace

std::filesystem::path own_directory() {
  namespace fs = std::filesystem;
  Dl_info info{};
  if (::dladdr(&kHere, &info) == 0 || info.dli_fname == nullptr) return {};
  // For a program the linker has the name that it was called by, which PATH may have completed.
  const fs::path file = info.dli_fname;
  std::error_code code;
  const fs::path real =
      file.is_absolute() ? fs::canonical(file, code) : fs::read_symlink("/proc/self/exe", code);
  return code ? fs::path() : real.parent_path();
}

}  // namespace hvd

// Puts functions of this module in the place of libc's for one library of the process: in the table through
// which that library calls them (x86-64 and aarch64). Nothing else in the process is touched.
#pragma once

#include <cstdint>
#include <vector>

namespace hvdmpi {

struct Replacement {
  const char* name;  // of libc's
  uintptr_t function;
};

template <class Function>
uintptr_t address_of(Function* function) {
  return reinterpret_cast<uintptr_t>(function);
}

/// component: what the library's file name begins with. True if all were replaced.
bool replace_calls(const char* component, const std::vector<Replacement>& replacements);

}  // namespace hvdmpi

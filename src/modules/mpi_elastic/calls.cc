// Finds a library's table of calls and replaces entries in it.
#include "modules/mpi_elastic/calls.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>

namespace hvdmpi {
namespace {

#if defined(__x86_64__) || defined(__aarch64__)

#ifdef __x86_64__
constexpr bool is_slot(uint64_t type) { return type == R_X86_64_JUMP_SLOT || type == R_X86_64_GLOB_DAT; }
#else
constexpr bool is_slot(uint64_t type) { return type == R_AARCH64_JUMP_SLOT || type == R_AARCH64_GLOB_DAT; }
#endif

// ELF has addresses as numbers.
template <class T>
T* pointer(uintptr_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// The places where the component's calls of other libraries' functions take their addresses from (ELF gABI,
// "Dynamic linking": each has a relocation that names the function).
struct Component {
  uintptr_t base = 0;
  uintptr_t guarded = 0, guarded_end = 0;  // pages that are read-only once it is loaded
  const Elf64_Sym* symbols = nullptr;
  const char* names = nullptr;
  const Elf64_Rela* tables[2] = {};
  size_t counts[2] = {};
};

Component component_of(const dl_phdr_info& info) {
  Component it;
  it.base = info.dlpi_addr;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const Elf64_Dyn* entry = nullptr;
  for (int i = 0; i < info.dlpi_phnum; ++i) {
    const Elf64_Phdr& header = info.dlpi_phdr[i];
    if (header.p_type == PT_DYNAMIC) { entry = pointer<const Elf64_Dyn>(it.base + header.p_vaddr); }
    if (header.p_type == PT_GNU_RELRO) {
      it.guarded = (it.base + header.p_vaddr) & ~(page - 1);
      it.guarded_end = (it.base + header.p_vaddr + header.p_memsz) & ~(page - 1);
    }
  }
  const auto at = [&](uint64_t value) { return value < it.base ? it.base + value : value; };
  for (; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    const uint64_t value = entry->d_un.d_val;
    switch (entry->d_tag) {
      case DT_SYMTAB: it.symbols = pointer<const Elf64_Sym>(at(value)); break;
      case DT_STRTAB: it.names = pointer<const char>(at(value)); break;
      case DT_JMPREL: it.tables[0] = pointer<const Elf64_Rela>(at(value)); break;
      case DT_PLTRELSZ: it.counts[0] = value / sizeof(Elf64_Rela); break;
      case DT_RELA: it.tables[1] = pointer<const Elf64_Rela>(at(value)); break;
      case DT_RELASZ: it.counts[1] = value / sizeof(Elf64_Rela); break;
      default: break;
    }
  }
  return it;
}

bool put(const Component& it, uintptr_t slot, uintptr_t function) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const bool guarded = slot >= it.guarded && slot < it.guarded_end;
  auto* const start = pointer<void>(slot & ~(page - 1));
  if (guarded && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  // Other threads may be calling through it.
  __atomic_store_n(pointer<uintptr_t>(slot), function, __ATOMIC_RELAXED);
  if (guarded) mprotect(start, page, PROT_READ);
  return true;
}

// True if each function was called from here, and is no more.
bool replace(const Component& it, const std::vector<Replacement>& replacements) {
  if (it.symbols == nullptr || it.names == nullptr) return false;
  std::vector<bool> replaced(replacements.size());
  for (int table = 0; table < 2; ++table) {
    for (size_t i = 0; it.tables[table] != nullptr && i < it.counts[table]; ++i) {
      const Elf64_Rela& place = it.tables[table][i];
      if (!is_slot(ELF64_R_TYPE(place.r_info))) continue;
      const char* const name = it.names + it.symbols[ELF64_R_SYM(place.r_info)].st_name;
      for (size_t which = 0; which < replacements.size(); ++which) {
        if (std::strcmp(name, replacements[which].name) == 0 &&
            put(it, it.base + place.r_offset, replacements[which].function))
          replaced[which] = true;
      }
    }
  }
  return std::all_of(replaced.begin(), replaced.end(), [](bool it) { return it; });
}

struct Search {
  const char* component;
  const std::vector<Replacement>& replacements;
  bool all = false;
};

int visit(dl_phdr_info* info, size_t, void* context) {
  auto& search = *static_cast<Search*>(context);
  std::string_view name = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  name.remove_prefix(std::min(name.rfind('/') + 1, name.size()));
  if (name.substr(0, std::strlen(search.component)) != search.component) return 0;
  search.all = replace(component_of(*info), search.replacements);
  return 1;
}

bool replace_in_component(Search search) {
  dl_iterate_phdr(visit, &search);
  return search.all;
}

#else
struct Search {
  const char* component;
  const std::vector<Replacement>& replacements;
};
bool replace_in_component(const Search&) { return false; }
#endif

}  // namespace

bool replace_calls(const char* component, const std::vector<Replacement>& replacements) {
  return replace_in_component({component, replacements});
}

}  // namespace hvdmpi

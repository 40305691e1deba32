#include "shield.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace hvdmpi {
namespace {

constexpr const char* kComponent = "mca_btl_tcp.so";

// The end of a pipe that is never written: nothing can be read, and it never becomes writable.
int nothing = -1;

// What the component knows as this connection is nothing from here on. Who polls it does so in vain.
void silence(int fd) { dup3(nothing, fd, O_CLOEXEC); }

bool connection_lost(int error) {
  for (const int one : {EPIPE, ECONNRESET, ECONNABORTED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, ENETDOWN}) {
    if (error == one) return true;
  }
  return false;
}
bool nobody_there(int error) { return error == ECONNREFUSED || error == ECONNRESET || error == ETIMEDOUT; }

ssize_t shielded_writev(int fd, const iovec* parts, int count) {
  const ssize_t size = writev(fd, parts, count);
  if (size >= 0) return size;
  if (errno != EBADF) {  // else it was silenced before: that end of a pipe can't be written
    if (!connection_lost(errno)) return size;
    silence(fd);
  }
  ssize_t all = 0;
  for (int i = 0; i < count; ++i) all += static_cast<ssize_t>(parts[i].iov_len);
  return all;
}

ssize_t shielded_readv(int fd, const iovec* parts, int count) {
  const ssize_t size = readv(fd, parts, count);
  if (size > 0 || (size < 0 && !connection_lost(errno))) return size;
  silence(fd);
  errno = EAGAIN;
  return -1;
}

int shielded_connect(int fd, const sockaddr* address, socklen_t size) {
  const int status = connect(fd, address, size);
  if (status == 0 || !nobody_there(errno)) return status;
  silence(fd);
  errno = EINPROGRESS;
  return -1;
}

int shielded_getsockopt(int fd, int level, int name, void* value, socklen_t* size) {
  const int status = getsockopt(fd, level, name, value, size);
  if (status != 0 || level != SOL_SOCKET || name != SO_ERROR || *size != sizeof(int)) return status;
  int error = 0;
  std::memcpy(&error, value, sizeof(error));
  if (!nobody_there(error)) return status;
  silence(fd);
  error = EINPROGRESS;
  std::memcpy(value, &error, sizeof(error));
  return status;
}

struct Replacement {
  const char* name;
  uintptr_t function;
};
const Replacement kReplacements[] = {
    {"writev", reinterpret_cast<uintptr_t>(&shielded_writev)},
    {"readv", reinterpret_cast<uintptr_t>(&shielded_readv)},
    {"connect", reinterpret_cast<uintptr_t>(&shielded_connect)},
    {"getsockopt", reinterpret_cast<uintptr_t>(&shielded_getsockopt)},
};

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

// The places where the component's calls of other libraries' functions take their addresses from (ELF gABI, "Dynamic
// linking": each has a relocation that names the function).
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

// How many of the functions were replaced.
int replace(const Component& it) {
  int replaced = 0;
  if (it.symbols == nullptr || it.names == nullptr) return 0;
  for (int table = 0; table < 2; ++table) {
    for (size_t i = 0; it.tables[table] != nullptr && i < it.counts[table]; ++i) {
      const Elf64_Rela& place = it.tables[table][i];
      if (!is_slot(ELF64_R_TYPE(place.r_info))) continue;
      const char* const name = it.names + it.symbols[ELF64_R_SYM(place.r_info)].st_name;
      for (const Replacement& replacement : kReplacements) {
        if (std::strcmp(name, replacement.name) == 0 &&
            put(it, it.base + place.r_offset, replacement.function))
          ++replaced;
      }
    }
  }
  return replaced;
}

int visit(dl_phdr_info* info, size_t, void* replaced) {
  const char* const name = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  const size_t length = std::strlen(name);
  const size_t wanted = std::strlen(kComponent);
  if (length < wanted || std::strcmp(name + length - wanted, kComponent) != 0) return 0;
  *static_cast<int*>(replaced) = replace(component_of(*info));
  return 1;
}

int replace_in_component() {
  int replaced = 0;
  dl_iterate_phdr(visit, &replaced);
  return replaced;
}

#else
int replace_in_component() { return 0; }
#endif

}  // namespace

bool shield_tcp() {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  nothing = ends[0];  // both ends stay open: without a writer, reading would end
  return replace_in_component() == static_cast<int>(sizeof(kReplacements) / sizeof(kReplacements[0]));
}

}  // namespace hvdmpi

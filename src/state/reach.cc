// process_vm_readv, and pages ahead of their first use.
#include "state/reach.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <random>

namespace hvd::state {
namespace {

Digest make_token() {
  std::random_device random;
  const auto word = [&] { return (uint64_t{random()} << 32U) | random(); };
  return {word(), word()};
}

}  // namespace

Reach own_reach() {
  static const Digest token =
      make_token();  // a fork has the same under another number, and the same bytes there
  return {static_cast<uint64_t>(getpid()), reinterpret_cast<uint64_t>(&token), token};
}

bool can_read(const Reach& of) {
  if (of.process == 0 || of.process > INT32_MAX) return false;
  Digest found;
  return read_from(of, of.mark, &found, sizeof(found)) && found == of.token;
}

bool read_from(const Reach& of, uint64_t address, void* to, size_t size) {
  auto* target = static_cast<uint8_t*>(to);
  while (size > 0) {
    iovec local{target, size};
    iovec remote{reinterpret_cast<void*>(address), size};  // NOLINT: an address elsewhere
    const ssize_t got = process_vm_readv(static_cast<pid_t>(of.process), &local, 1, &remote, 1, 0);
    if (got <= 0) {
      if (got == 0) errno = EFAULT;
      return false;
    }
    target += got;
    address += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
  return true;
}

void touch(void* data, size_t size) {
#ifndef MADV_POPULATE_WRITE
  constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14
#endif
  constexpr uintptr_t kPage = 4096;
  constexpr size_t kMost = 4096;  // pages looked at
  const uintptr_t first = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(data) + size) / kPage * kPage;
  if (last <= first) return;
  // Asking for pages that are there costs a fifth of a copy; looking for them costs next to nothing.
  std::array<unsigned char, kMost> there{};
  const size_t pages = std::min((last - first) / kPage, kMost);
  auto* const start = reinterpret_cast<void*>(first);  // NOLINT: whole pages
  if (mincore(start, pages * kPage, there.data()) != 0) return;
  const auto absent = std::count_if(there.begin(), there.begin() + static_cast<ptrdiff_t>(pages),
                                    [](unsigned char page) { return (page & 1U) == 0; });
  // An older kernel refuses; then the pages come one by one, at their first use.
  if (static_cast<size_t>(absent) * 2 > pages) madvise(start, last - first, MADV_POPULATE_WRITE);
}

}  // namespace hvd::state

// process_vm_readv, and the proof that it reads the right process.
#include "state/reach.h"

#include <sys/uio.h>
#include <unistd.h>

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

}  // namespace hvd::state

// Keeps Open MPI's TCP from learning of a peer's death.
#include "modules/mpi_elastic/shield.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "modules/mpi_elastic/calls.h"
#include "modules/mpi_elastic/silence.h"

namespace hvdmpi {
namespace {

// Where btl/tcp is: a library of its own (version 4), or else within the one that it is built into (version
// 5), in which nothing else calls the functions that are replaced.
constexpr const char* kComponents[] = {"mca_btl_tcp.so", "libopen-pal.so"};

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

const std::vector<Replacement> kReplacements = {
    {"writev", address_of(&shielded_writev)},
    {"readv", address_of(&shielded_readv)},
    {"connect", address_of(&shielded_connect)},
    {"getsockopt", address_of(&shielded_getsockopt)},
};

}  // namespace

bool shield_tcp() {
  if (!prepare_silence()) return false;
  for (const char* component : kComponents) {
    if (replace_calls(component, kReplacements)) return true;
  }
  return false;
}

}  // namespace hvdmpi

// Replaces a connection by one on which nothing ever comes.
#include "modules/mpi_elastic/silence.h"

#include <fcntl.h>
#include <unistd.h>

namespace hvdmpi {
namespace {
int nothing = -1;
}

bool prepare_silence() {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  nothing = ends[0];  // both ends stay open: without a writer, reading would end
  return true;
}

void silence(int fd) { dup3(nothing, fd, O_CLOEXEC); }

}  // namespace hvdmpi

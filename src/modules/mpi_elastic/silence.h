// What becomes of a connection whose peer is dead, so that MPI does not learn of it: see shield.h.
#pragma once

namespace hvdmpi {

/// Before the first silence. False if there are no descriptors to be had.
bool prepare_silence();

/// In the place of this connection comes the end of a pipe that is never written: nothing can be read, and it never becomes
/// writable. Who polls what was there does so in vain.
void silence(int fd);

}  // namespace hvdmpi

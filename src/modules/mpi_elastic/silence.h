// Makes a connection whose peer is dead look idle, so that MPI does not notice: see shield.h.
#pragma once

namespace hvdmpi {

/// Before the first silence. False if no descriptors are left.
bool prepare_silence();

/// In the place of this connection comes the end of a pipe that is never written: nothing can be read, and it
/// never becomes writable. Polling the old descriptor reports nothing.
void silence(int fd);

}  // namespace hvdmpi

// Hides the deaths of peers from MPI's TCP, which does not survive them. The links report deaths; MPI need
// not know.
#pragma once

namespace hvdmpi {

/// Open MPI's btl/tcp: version 4 may add an event twice and walk the list of events for ever, take a lock
/// that it holds, or send what it has freed. From here on a connection that fails is one on which nothing
/// comes and everything goes. To be called when MPI has begun, before it has connections. False if there is
/// no such component here, or no way to reach its calls.
bool shield_tcp();

/// The same for MPICH over libfabric's provider tcp: MPICH ends the process when a send fails, and where a
/// collective that was given up still has something to send, connects to the dead rank again and again and
/// does nothing else.
bool shield_fabric();

}  // namespace hvdmpi

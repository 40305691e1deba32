// Keeps the deaths of peers from Open MPI's TCP, which does not live through them: in version 4 it may add an event twice and
// walk the list of events for ever, take a lock that it holds, or send what it has freed. The links tell of deaths; MPI
// needs not know.
#pragma once

namespace hvdmpi {

/// From here on a connection that fails is, for Open MPI's TCP, one on which nothing comes and everything goes. To be called
/// when MPI has begun, before it has connections. False if there is no such component here, or no way to reach its calls.
bool shield_tcp();

}  // namespace hvdmpi

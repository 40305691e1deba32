// PMIx beneath Open MPI, through which processes that were started apart find each other from version 5 on.
#pragma once

#include <string>

namespace hvdmpi {

/// Makes worker number `worker` a client of the driver's PMIx server when MPI begins. server: what the driver
/// says of it, "NAME=value|NAME=value|...": variables of PMIx, which under their own names would make others
/// take this process for one that a launcher has started. Each worker is a namespace of its own, of one
/// process.
void meet_through(const std::string& server, const std::string& worker);

/// Once MPI has begun: the server's end, of which Open MPI would make this process's, is nothing from here
/// on. Without PMIx's headers at build time it stays as Open MPI has it.
void outlive_server();

}  // namespace hvdmpi

// The ranks of a host share memory, whatever backend joins the hosts.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace hvd::backend::local {

/// Wraps `inner`, which was opened with the same handlers. It is connected only when the generation's ranks
/// are not all on one host that they share memory on; then messages and operations of ranks of one host go
/// through memory all the same, and a collective goes to it for one rank of each host.
///
/// share: false makes an instance that says to the others that it shares no memory.
std::unique_ptr<Instance> make_instance(std::unique_ptr<Instance> inner, HostHandlers handlers,
                                        LoggerPtr logger, bool share = true);

}  // namespace hvd::backend::local

// The ranks of a host share memory, whatever backend joins the hosts.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace hvd::local {

enum class Shares {
  kAll,       // messages and what operations move
  kMessages,  // messages alone: for a backend that is fast inside a host by itself
  kNothing    // says to the others that it shares no memory
};

/// Wraps `inner`, which was opened with the same handlers.
///
/// kAll: it is connected only when the generation's ranks are not all on one host that they share memory on;
/// then messages and operations of ranks of one host go through memory all the same, and a collective goes to
/// it for one rank of each host. kMessages: it is connected always, and every operation goes to it as it is.
/// All ranks have the same, but that any of kAll may be kNothing; else connect gives HVD_INVALID.
std::unique_ptr<backend::Instance> make_instance(std::unique_ptr<backend::Instance> inner,
                                                 backend::HostHandlers handlers, LoggerPtr logger,
                                                 Shares shares = Shares::kAll);

}  // namespace hvd::local

// Who is at the other end of this process's connections.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>

namespace hvd::pmix_server {

/// The user of the process that has connection `fd` of TCP at its other end, if that is on this host: by what
/// the kernel says of the socket whose own address is the peer's. nullopt: not this host's, no connection of
/// TCP, or gone.
std::optional<uid_t> peer_user(int fd);

/// Ends all connections of this process whose other end is another user's. Returns how many.
int close_strangers();

}  // namespace hvd::pmix_server

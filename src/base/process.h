// Which process this is, cheap enough to ask at every call.
#pragma once

#include <sys/types.h>

namespace hvd {

/// getpid() without the system call: a child that was forked finds its own number as well.
pid_t current_process();

}  // namespace hvd

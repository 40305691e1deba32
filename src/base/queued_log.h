// A logger in front of another one for threads that must not wait: what the program's log callback waits for
// (a lock, Python's) holds up a thread of its own and nobody else.
#pragma once

#include "base/clock.h"
#include "base/log.h"

namespace hvd {

/// Lines go to `logger` in their order, from a thread that ends when the last user of the result is gone:
/// what is queued then is written for at most `patience`. When more than `most` wait, the newest are counted
/// instead of kept.
LoggerPtr queue_log(LoggerPtr logger, Duration patience = seconds(1), size_t most = 1000);

}  // namespace hvd

// Several backends as one instance: operations go to the first that serves them, everything else to the one
// for host memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace hvd::selection {

/// A backend in use by this worker.
struct Selected {
  std::unique_ptr<backend::Instance> instance;
  std::string reason;  // why it was chosen: "option backend names it"
  /// The job goes on without it where this worker or another can't bring it: it was looked for, not named.
  bool optional = false;
};

/// A backend that was looked for and is not in use, and why.
struct Absent {
  std::string name, reason;
};

/// The first of `selected` serves host memory and carries the messages; those after it are asked in their
/// order for what those before them do not serve. Rank 0's order holds for all ranks, and a backend serves in
/// a generation only if every member brings it, and only what all of them say it can. absent: to be named
/// where nothing serves.
std::unique_ptr<backend::Instance> make_composite(std::vector<Selected> selected, std::vector<Absent> absent,
                                                  LoggerPtr logger);

}  // namespace hvd::selection

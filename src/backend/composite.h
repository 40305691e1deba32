// Several backends as one instance: operations go to the first that serves them, everything else to the one for host
// memory.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace hvd::backend {

/// What the backends of one composite say to the core. Made before they are opened.
class Relay {
 public:
  explicit Relay(HostHandlers handlers) : handlers_(std::move(handlers)) {}
  /// For the backend of this name: keys of the store are its own, a failure is told once a generation. messages:
  /// whether its messages are the core's.
  static HostHandlers handlers(const std::shared_ptr<Relay>& relay, const std::string& name, bool messages);

 private:
  void failure(uint64_t generation, int32_t peer, const std::string& text);

  const HostHandlers handlers_;
  std::mutex mutex_;
  bool told_ = false;
  uint64_t told_generation_ = 0;
};

/// A backend in use by this worker.
struct Selected {
  std::unique_ptr<Instance> instance;
  std::string reason;  // why it was chosen: "option backend names it"
  /// The job goes on without it where this worker or another can't bring it: it was looked for, not named.
  bool optional = false;
};

/// A backend that was looked for and is not in use, and why.
struct Absent {
  std::string name, reason;
};

/// The first of `selected` serves host memory and carries the messages; those after it are asked in their order for
/// what those before them do not serve. Rank 0's order holds for all ranks, and a backend serves in a generation
/// only if every member brings it, and only what all of them say it can.
/// absent: to be named where nothing serves.
std::unique_ptr<Instance> make_composite(std::vector<Selected> selected, std::vector<Absent> absent,
                                         LoggerPtr logger);

}  // namespace hvd::backend

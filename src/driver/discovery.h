// Which hosts there are, and with how many slots: fixed, told by a script, or by a callback.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/status.h"
#include "membership/membership.h"

namespace hvd::driver {

/// Slots of all hosts together: as many as a generation may have members (option np).
inline constexpr int32_t kMostSlots = 1 << 20;

/// Why a host of `slots` is too much where others have `before`, at most kMostSlots; nothing if it is not.
std::optional<std::string> too_many_slots(const std::string& host, int32_t slots, int64_t before);

/// "a:2, b:1"; "no hosts". Of very many only the first.
std::string describe_hosts(const std::vector<membership::HostSlots>& hosts);

/// "a:2,b,[::1]:2"; a host without slots has slots_per_host. Throws Error(HVD_INVALID): empty, twice the
/// same host, slots < 1, not a name, more than kMostSlots.
std::vector<membership::HostSlots> parse_fixed_hosts(const std::string& text, int32_t slots_per_host);

/// What a discovery script printed: a line "host[:slots]" for each host; blank lines and what follows a # do
/// not count. Throws Error(HVD_UNAVAILABLE) that names the line.
std::vector<membership::HostSlots> parse_discovery_output(const std::string& text, int32_t slots_per_host);

/// Checks hosts that a callback named. Throws Error(HVD_UNAVAILABLE).
void check_hosts(const std::vector<membership::HostSlots>& hosts);

class HostDiscovery {
 public:
  /// On the loop's thread, once for each discover: HVD_OK with hosts, or why they can't be told.
  using Done = std::function<void(const Status& status, std::vector<membership::HostSlots> hosts)>;

  virtual ~HostDiscovery() = default;
  /// Asks once; `done` comes at the latest after the time-out. Not again before that. On the loop's thread.
  virtual void discover(Done done) = 0;
  /// The answer never changes.
  virtual bool fixed() const { return false; }
  /// Ends what is under way, within `grace`; `done` is not called any more. On the loop's thread.
  virtual void close(Duration grace) = 0;
};

std::unique_ptr<HostDiscovery> make_fixed_discovery(std::vector<membership::HostSlots> hosts);

/// Runs the program anew for each discovery, in a process group of its own; its stderr goes to the log.
/// One that does not end in time is killed with its group.
std::unique_ptr<HostDiscovery> make_script_discovery(Loop& loop, std::string program, int32_t slots_per_host,
                                                     Duration timeout, LoggerPtr logger);

/// Adds hosts; returns 0, or nonzero if they can't be told.
using DiscoverFunction = std::function<int32_t(std::vector<membership::HostSlots>* hosts)>;

/// Calls `discover` from a thread of its own. A call that outlasts the time-out counts as failed, and so do
/// all until it returns; its late answer is dropped. close waits for it at most for `grace` and then leaves
/// the thread behind: it owns what it uses, and ends when the call returns.
std::unique_ptr<HostDiscovery> make_callback_discovery(Loop& loop, DiscoverFunction discover,
                                                       Duration timeout);

}  // namespace hvd::driver

// What the driver's options come to, checked as a whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/options.h"
#include "membership/membership.h"

namespace hvd::driver {

struct Settings {
  std::string job, secret;
  std::string address_file;                 // "": none
  std::string listen;                       // "address:port", as wire::Listener takes it
  int64_t np = 0, min_np = 0, max_np = 0;   // as given; 0 is resolved by membership_config
  membership::MembershipConfig membership;  // but for np, min_np and max_np
  Duration discovery_interval{}, discovery_timeout{};
  Duration heartbeat_interval{}, heartbeat_timeout{}, slow_timeout{};
  Duration stop_grace{}, leave_timeout{};
  int32_t slots_per_host = 1;
  bool torchrun = false;
  std::string master_addr;
  uint16_t master_port = 0;
  std::string journal;           // directory, or ""
  bool private_journal = false;  // where none is named
  bool takeover = false;
  std::string follow;    // addresses of drivers to stand by for; "": none
  bool standby = false;  // before that: until the job's driver is gone
};

/// Reads the options and checks the ladder of time-outs and sizes. Throws Error(HVD_INVALID) that names
/// keys and values (contract 12). Makes job name and secret where none are given.
Settings read_settings(const Options& options);

/// np, min_np and max_np for the hosts found first. `fixed`: the hosts can't change. Throws
/// Error(HVD_UNAVAILABLE) if fixed hosts can never be enough.
membership::MembershipConfig membership_config(const Settings& settings,
                                               const std::vector<membership::HostSlots>& hosts, bool fixed);

/// `bytes` random bytes from the kernel, as hexadecimal digits.
std::string random_hex(size_t bytes);

}  // namespace hvd::driver

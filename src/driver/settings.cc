// Reads the driver's options and checks them against each other.
#include "driver/settings.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <charconv>
#include <cstring>

#include "base/secret.h"
#include "base/status.h"
#include "driver/discovery.h"
#include "wire/tls.h"

namespace hvd::driver {
namespace {

[[noreturn]] void invalid(const std::string& message) { throw Error(HVD_INVALID, message); }

/// "address[:port]" to "address:port"; an IPv6 address stands in brackets if a port follows.
std::string listen_endpoint(const std::string& text) {
  if (text.empty()) return "127.0.0.1:0";
  std::string address = text;
  std::string port = "0";
  if (text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string::npos || (close + 1 < text.size() && text[close + 1] != ':')) {
      invalid(fmt::format("option listen is '{}': expected address, address:port or [address]:port", text));
    }
    address = text.substr(1, close - 1);
    if (close + 1 < text.size()) port = text.substr(close + 2);
  } else if (const size_t colon = text.find(':');
             colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
    address = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  uint16_t number = 0;
  const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (address.empty() || error != std::errc() || stop != port.data() + port.size()) {
    invalid(fmt::format("option listen is '{}': expected address[:port] with a port from 0 to 65535", text));
  }
  return address.find(':') == std::string::npos ? address + ":" + port : "[" + address + "]:" + port;
}

void check_sizes(const Settings& s) {
  const auto both = [](const char* low, int64_t a, const char* high, int64_t b) {
    if (a > 0 && b > 0 && a > b) {
      invalid(
          fmt::format("option {} is {} and {} is {}: expected 1 <= min_np <= np <= max_np", low, a, high, b));
    }
  };
  both("min_np", s.min_np, "np", s.np);
  both("np", s.np, "max_np", s.max_np);
  both("min_np", s.min_np, "max_np", s.max_np);
}

void check_times(const Settings& s) {
  if (s.heartbeat_interval * 2 >= s.heartbeat_timeout) {
    invalid(fmt::format(
        "option heartbeat_interval is {:g} s and heartbeat_timeout is {:g} s: expected the interval "
        "to be less than half of the time-out",
        to_seconds(s.heartbeat_interval), to_seconds(s.heartbeat_timeout)));
  }
  const membership::MembershipConfig& m = s.membership;
  if (m.restart_delay_min > m.restart_delay_max) {
    invalid(
        fmt::format("option restart_delay_min is {:g} s and restart_delay_max is {:g} s: expected min <= max",
                    to_seconds(m.restart_delay_min), to_seconds(m.restart_delay_max)));
  }
  if (m.blocklist_cooldown_min > m.blocklist_cooldown_max) {
    invalid(
        fmt::format("option blocklist_cooldown_min is {:g} s and blocklist_cooldown_max is {:g} s: expected "
                    "min <= max",
                    to_seconds(m.blocklist_cooldown_min), to_seconds(m.blocklist_cooldown_max)));
  }
  if (m.join_settle >= m.elastic_timeout) {
    invalid(fmt::format(
        "option join_settle is {:g} s and elastic_timeout is {:g} s: expected join_settle to be less",
        to_seconds(m.join_settle), to_seconds(m.elastic_timeout)));
  }
}

}  // namespace

std::string random_hex(size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes;) {
    unsigned char byte = 0;
    const ssize_t got = getrandom(&byte, 1, 0);
    if (got < 0 && errno != EINTR) {
      throw Error(HVD_UNAVAILABLE, fmt::format("no random bytes from the kernel: {}", std::strerror(errno)));
    }
    if (got != 1) continue;
    text += fmt::format("{:02x}", byte);
    ++i;
  }
  return text;
}

Settings read_settings(const Options& o) {
  Settings s;
  s.job = o.string("job");
  if (s.job.empty()) s.job = "job-" + random_hex(8);
  s.secret = read_secret(o);
  // The environment of a driver that a worker of another job runs has that worker's key.
  if (s.secret.empty() || wire::is_key(s.secret)) {
    s.secret = random_hex(32);
  } else if (s.secret.size() < 32 || s.secret.size() > 512) {
    invalid(fmt::format("option secret has {} characters: expected 32 to 512", s.secret.size()));
  }
  s.address_file = o.string("address_file");
  s.listen = listen_endpoint(o.string("listen"));
  s.np = o.integer("np");
  s.min_np = o.integer("min_np");
  s.max_np = o.integer("max_np");
  s.membership.restart = o.boolean("restart");
  s.membership.spares = static_cast<int32_t>(o.integer("spares"));
  s.membership.reset_limit = static_cast<int32_t>(o.integer("reset_limit"));
  s.membership.stall_shutdown = o.duration("stall_shutdown");
  s.membership.elastic_timeout = o.duration("elastic_timeout");
  s.membership.start_timeout = o.duration("start_timeout");
  s.membership.join_settle = o.duration("join_settle");
  s.membership.feed_timeout = o.duration("feed_timeout");
  s.membership.join_pause = o.duration("join_pause");
  s.membership.restart_delay_min = o.duration("restart_delay_min");
  s.membership.restart_delay_max = o.duration("restart_delay_max");
  s.membership.blocklist_after = static_cast<int32_t>(o.integer("blocklist_after"));
  s.membership.blocklist_cooldown_min = o.duration("blocklist_cooldown_min");
  s.membership.blocklist_cooldown_max = o.duration("blocklist_cooldown_max");
  s.discovery_interval = o.duration("discovery_interval");
  s.discovery_timeout = o.duration("discovery_timeout");
  s.heartbeat_interval = o.duration("heartbeat_interval");
  s.heartbeat_timeout = o.duration("heartbeat_timeout");
  s.slow_timeout = std::max(o.duration("slow_timeout"), s.heartbeat_timeout);
  s.membership.slow_timeout = s.slow_timeout;
  s.membership.driver_timeout = std::max(o.duration("driver_timeout"), s.heartbeat_timeout);
  s.stop_grace = o.duration("stop_grace");
  s.leave_timeout = o.duration("leave_timeout");
  s.slots_per_host = static_cast<int32_t>(o.integer("slots_per_host"));
  s.torchrun = o.boolean("torchrun");
  s.master_addr = o.string("master_addr");
  s.master_port = static_cast<uint16_t>(o.integer("master_port"));
  s.journal = o.string("journal");
  s.private_journal = s.journal.empty();
  if (s.journal == "off") s.journal.clear();
  s.follow = o.string("follow");
  s.standby = o.boolean("standby") || !s.follow.empty();
  s.takeover = o.boolean("takeover") || s.standby;
  if (!s.follow.empty() && s.journal.empty() && !s.private_journal)
    invalid(
        "option follow is set: expected a directory as option journal, or none, for a copy of the driver's");
  if (s.standby && s.journal.empty() && s.follow.empty()) {
    invalid(
        "option standby is set: expected option journal as well, the directory of the job's driver, or option "
        "follow, its address");
  }
  if (s.takeover && (!o.is_set("job") || (!o.is_set("secret") && !o.is_set("secret_file")))) {
    invalid(
        "option takeover or standby is set: expected options job and secret (or secret_file) as well, those of the "
        "earlier driver");
  }
  check_sizes(s);
  check_times(s);
  return s;
}

membership::MembershipConfig membership_config(const Settings& settings,
                                               const std::vector<membership::HostSlots>& hosts, bool fixed) {
  int64_t slots = 0;  // at most kMostSlots: discovery and the parsers see to it
  for (const membership::HostSlots& host : hosts) slots += host.slots;
  // Where np is left open it is one for each slot, within the bounds that were given.
  int64_t np = settings.np;
  if (np == 0) {
    np = std::max<int64_t>({slots - settings.membership.spares, settings.min_np, 1});
    if (settings.max_np > 0) np = std::min(np, settings.max_np);
  }
  const int64_t min_np = settings.min_np > 0 ? settings.min_np : np;
  // Beyond no maximum there is no spare.
  const int64_t max_np =
      settings.max_np > 0 ? settings.max_np : (fixed || settings.membership.spares > 0 ? np : 0);
  if (fixed && min_np > slots) {
    throw Error(
        HVD_UNAVAILABLE,
        fmt::format(
            "not enough slots: the fixed hosts ({}) have {} and will never have more, but at least {} "
            "workers are wanted (np {}, min_np {})",
            describe_hosts(hosts), slots, min_np, settings.np, settings.min_np));
  }
  membership::MembershipConfig config = settings.membership;
  config.np = static_cast<int32_t>(np);
  config.min_np = static_cast<int32_t>(min_np);
  config.max_np = static_cast<int32_t>(max_np);
  config.hosts_fixed = fixed;
  return config;
}

}  // namespace hvd::driver

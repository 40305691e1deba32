// Parses hosts, and asks a callback for them from a thread of its own.
#include "driver/discovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <unordered_set>

#include "base/text.h"
#include "base/thread.h"

namespace hvd::driver {
namespace {

constexpr size_t kMaxName = 253;  // of a host name (RFC 1035)
constexpr size_t kMostHosts = size_t{1} << 16;
constexpr size_t kShownHosts = 64;  // in a line of the log

std::string_view trimmed(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

std::string shown(std::string_view text) {
  const std::string result = printable(text, 80);
  return text.size() > 80 ? result + "..." : result;
}

/// What is wrong with a host's name, or nothing.
std::optional<std::string> bad_name(std::string_view name) {
  if (name.empty()) return "a host without a name";
  if (name.size() > kMaxName)
    return fmt::format("a host name of {} characters: expected at most {}", name.size(), kMaxName);
  // The program that starts an agent there would take a leading dash for an option.
  if (name.front() == '-') return fmt::format("'{}' is no host name", shown(name));
  for (const char c : name) {
    const bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '.' || c == '-' || c == '_' || c == ':' || c == '%';
    if (!good) return fmt::format("'{}' is no host name", shown(name));
  }
  return std::nullopt;
}

std::optional<std::string> bad_slots(const membership::HostSlots& host) {
  if (host.slots >= 1 && host.slots <= kMostSlots) return std::nullopt;
  return fmt::format("host {} has {} slots: expected 1 to {}", shown(host.name), host.slots, kMostSlots);
}

/// "host", "host:slots", "[address]:slots". Returns what is wrong.
std::optional<std::string> parse_host(std::string_view text, int32_t slots_per_host,
                                      membership::HostSlots* ret_host) {
  std::string_view name = text;
  std::optional<std::string_view> slots;
  if (!text.empty() && text.front() == '[') {
    const size_t close = text.find(']');
    if (close == std::string_view::npos)
      return fmt::format("'{}': expected ] after the address", shown(text));
    name = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') {
      return fmt::format("'{}': expected [address] or [address]:slots", shown(text));
    }
    if (!rest.empty()) slots = rest.substr(1);
  } else if (const size_t colon = text.find(':'); colon != std::string_view::npos) {
    if (text.find(':', colon + 1) != std::string_view::npos) {
      return fmt::format("'{}': expected host:slots, or [address]:slots for an IPv6 address", shown(text));
    }
    name = text.substr(0, colon);
    slots = text.substr(colon + 1);
  }
  if (auto bad = bad_name(name)) return bad;
  int32_t number = slots_per_host;
  if (slots) {
    const auto [stop, error] = std::from_chars(slots->data(), slots->data() + slots->size(), number);
    if (error != std::errc() || stop != slots->data() + slots->size()) {
      return fmt::format("'{}': expected a number of slots after the colon", shown(text));
    }
  }
  *ret_host = {std::string(name), number};
  return bad_slots(*ret_host);
}

/// Takes hosts one by one, each once.
class HostList {
 public:
  /// What is wrong with it, or nothing.
  std::optional<std::string> add(membership::HostSlots host) {
    if (hosts_.size() == kMostHosts) return fmt::format("more than {} hosts", kMostHosts);
    if (!names_.insert(host.name).second) return fmt::format("host {} is named twice", host.name);
    if (auto bad = too_many_slots(host.name, host.slots, slots_)) return bad;
    slots_ += host.slots;
    hosts_.push_back(std::move(host));
    return std::nullopt;
  }
  std::vector<membership::HostSlots> take() { return std::move(hosts_); }

 private:
  std::vector<membership::HostSlots> hosts_;
  std::unordered_set<std::string> names_;
  int64_t slots_ = 0;
};

class FixedDiscovery final : public HostDiscovery {
 public:
  explicit FixedDiscovery(std::vector<membership::HostSlots> hosts) : hosts_(std::move(hosts)) {}
  void discover(Done done) override { done(Status(), hosts_); }
  bool fixed() const override { return true; }
  void close(Duration) override {}

 private:
  const std::vector<membership::HostSlots> hosts_;
};

class CallbackDiscovery final : public HostDiscovery {
 public:
  CallbackDiscovery(Loop& loop, DiscoverFunction discover, Duration timeout)
      : shared_(std::make_shared<Shared>()), loop_(loop), timeout_(timeout), timer_(loop) {
    shared_->discover = std::move(discover);
  }

  ~CallbackDiscovery() override { close(Duration(0)); }

  void discover(Done done) override {
    {
      std::unique_lock lock(shared_->mutex);
      if (shared_->calling) {
        lock.unlock();
        done(Status(HVD_UNAVAILABLE, "the discovery callback has not returned yet"), {});
        return;
      }
      shared_->calling = true;
      shared_->loop = &loop_;
      shared_->answer = [this, alive = std::weak_ptr<int>(alive_), call = ++call_](
                            const Status& status, std::vector<membership::HostSlots> hosts) {
        if (!alive.expired()) finish(call, status, std::move(hosts));
      };
    }
    shared_->changed.notify_all();
    if (!thread_.joinable()) thread_ = start_thread("hvd-discovery", [shared = shared_] { run(*shared); });
    done_ = std::move(done);
    timer_.start(timeout_, [this, call = call_] {
      finish(call,
             Status(HVD_UNAVAILABLE,
                    fmt::format("the discovery callback did not return within {:g} s", to_seconds(timeout_))),
             {});
    });
  }

  void close(Duration grace) override {
    timer_.cancel();
    done_ = nullptr;
    if (!thread_.joinable()) return;
    {
      std::unique_lock lock(shared_->mutex);
      shared_->closed = true;
      shared_->loop = nullptr;
      shared_->answer = nullptr;
      shared_->changed.notify_all();
      if (!shared_->changed.wait_for(lock, grace, [&] { return shared_->ended; })) {
        thread_.detach();
        return;
      }
    }
    thread_.join();
  }

 private:
  /// What the thread uses: it may outlive the rest.
  struct Shared {
    DiscoverFunction discover;
    std::mutex mutex;
    std::condition_variable changed;
    bool calling = false;
    bool closed = false;
    bool ended = false;
    Loop* loop = nullptr;  // while not closed
    Done answer;
  };

  static void run(Shared& shared) {
    std::unique_lock lock(shared.mutex);
    while (true) {
      shared.changed.wait(lock, [&] { return shared.closed || shared.calling; });
      if (shared.closed) break;
      lock.unlock();
      std::vector<membership::HostSlots> hosts;
      Status status;
      try {
        const int32_t result = shared.discover(&hosts);
        if (result != 0) {
          status = Status(HVD_UNAVAILABLE, fmt::format("the discovery callback returned {}", result));
        } else {
          check_hosts(hosts);
        }
      } catch (const Error& error) { status = error.status(); } catch (const std::exception& error) {
        status = Status(HVD_UNAVAILABLE, fmt::format("the discovery callback failed: {}", error.what()));
      }
      lock.lock();
      shared.calling = false;
      if (shared.loop != nullptr && shared.answer) {
        shared.loop->post(
            [answer = std::exchange(shared.answer, nullptr), status, hosts] { answer(status, hosts); });
      }
    }
    lock.unlock();
    shared.discover = nullptr;  // releases the userdata before close returns
    lock.lock();
    shared.ended = true;
    shared.changed.notify_all();
  }

  void finish(uint64_t call, const Status& status, std::vector<membership::HostSlots> hosts) {
    if (call != call_ || !done_) return;  // a late answer
    timer_.cancel();
    std::exchange(done_, nullptr)(status, std::move(hosts));
  }

  const std::shared_ptr<Shared> shared_;
  Loop& loop_;
  const Duration timeout_;
  Loop::Timer timer_;
  std::thread thread_;
  uint64_t call_ = 0;
  Done done_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // an answer on its way outlives this object
};

}  // namespace

std::optional<std::string> too_many_slots(const std::string& host, int32_t slots, int64_t before) {
  if (before + slots <= kMostSlots) return std::nullopt;
  return fmt::format("{} slots with host {}: expected at most {} of all hosts together", before + slots,
                     shown(host), kMostSlots);
}

std::string describe_hosts(const std::vector<membership::HostSlots>& hosts) {
  if (hosts.empty()) return "no hosts";
  std::string text;
  for (const membership::HostSlots& host : std::span(hosts).first(std::min(hosts.size(), kShownHosts))) {
    const bool address = host.name.find(':') != std::string::npos;
    text += fmt::format("{}{}{}{}:{}", text.empty() ? "" : ", ", address ? "[" : "", host.name,
                        address ? "]" : "", host.slots);
  }
  if (hosts.size() > kShownHosts) text += fmt::format(" and {} more", hosts.size() - kShownHosts);
  return text;
}

std::vector<membership::HostSlots> parse_fixed_hosts(const std::string& text, int32_t slots_per_host) {
  const auto fail = [&](const std::string& what) {
    throw Error(HVD_INVALID, fmt::format("option hosts is '{}': {}; expected host:slots separated by commas",
                                         shown(text), what));
  };
  HostList hosts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    membership::HostSlots host;
    if (auto bad =
            parse_host(trimmed(std::string_view(text).substr(begin, end - begin)), slots_per_host, &host)) {
      fail(*bad);
    }
    if (auto bad = hosts.add(std::move(host))) fail(*bad);
    begin = end + 1;
  }
  return hosts.take();
}

std::vector<membership::HostSlots> parse_discovery_output(const std::string& text, int32_t slots_per_host) {
  HostList hosts;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    line = trimmed(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    membership::HostSlots host;
    std::optional<std::string> bad = parse_host(line, slots_per_host, &host);
    if (!bad) bad = hosts.add(std::move(host));
    if (bad) throw Error(HVD_UNAVAILABLE, fmt::format("line {}: {}; expected host[:slots]", number, *bad));
  }
  return hosts.take();
}

void check_hosts(const std::vector<membership::HostSlots>& hosts) {
  HostList list;
  for (const membership::HostSlots& host : hosts) {
    std::optional<std::string> bad = bad_name(host.name);
    if (!bad) bad = bad_slots(host);
    if (!bad) bad = list.add(host);
    if (bad)
      throw Error(HVD_UNAVAILABLE,
                  fmt::format("the discovery callback named hosts that can't be used: {}", *bad));
  }
}

std::unique_ptr<HostDiscovery> make_fixed_discovery(std::vector<membership::HostSlots> hosts) {
  return std::make_unique<FixedDiscovery>(std::move(hosts));
}

std::unique_ptr<HostDiscovery> make_callback_discovery(Loop& loop, DiscoverFunction discover,
                                                       Duration timeout) {
  return std::make_unique<CallbackDiscovery>(loop, std::move(discover), timeout);
}

}  // namespace hvd::driver

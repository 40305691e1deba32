// Reads an agent's options, starts it and tells how it ended.
#include "agent/agent.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <future>
#include <utility>

#include "agent/agent_impl.h"
#include "agent/fleet.h"
#include "base/secret.h"
#include "base/text.h"
#include "launch/process.h"

namespace hvd::agent {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

AgentSettings read_agent_settings(const Options& o) {
  AgentSettings s;
  const std::string drivers = o.string("driver");
  for (size_t begin = 0; begin < drivers.size();) {
    const size_t end = std::min(drivers.find(',', begin), drivers.size());
    if (end > begin) s.drivers.push_back(drivers.substr(begin, end - begin));
    begin = end + 1;
  }
  if (s.drivers.empty())
    throw Error(HVD_INVALID, "an agent without option driver: expected host:port of the driver");
  s.job = o.string("job");
  s.secret = read_secret(o);
  if (s.secret.empty()) {
    throw Error(
        HVD_INVALID,
        "an agent without the job's secret: expected option secret_file, or HVD_SECRET in the environment");
  }
  s.host = o.is_set("host") ? o.string("host") : host_name();
  if (s.host.empty() || s.host.size() > 253 || printable(s.host) != s.host)
    throw Error(HVD_INVALID, fmt::format("option host is '{}': expected a name of 1 to 253 characters",
                                         printable(s.host)));
  s.slots = static_cast<int32_t>(o.integer("slots_per_host"));
  if (s.slots > kMostSlotsOfAnAgent) {
    throw Error(HVD_INVALID, fmt::format("option slots_per_host is {}: expected 1 to {} of an agent", s.slots,
                                         kMostSlotsOfAnAgent));
  }
  s.patience = o.duration("agent_timeout");
  s.stop_grace = o.duration("stop_grace");
  s.connect_timeout = std::min<Duration>(o.duration("connect_timeout"), seconds(5));
  s.leave_timeout = o.duration("leave_timeout");
  s.guard = o.string("guard");
  s.spool = o.string("agent_spool");
  s.spool_bytes = static_cast<uint64_t>(o.integer("agent_spool_bytes"));
  return s;
}

Agent::Agent(const Options& options) : settings_(read_agent_settings(options)), logger_(options.logger) {
  if (const int64_t soft = options.integer("children_descriptors"); soft > 0)
    launch::limit_descriptors_of_children(soft);
}

Agent::~Agent() { close(); }

void Agent::set_command(std::vector<std::string> argv, std::vector<std::string> environment) {
  std::lock_guard lock(mutex_);
  if (started_) throw Error(HVD_INVALID, "the agent is started already: set it up before");
  if (argv.empty()) throw Error(HVD_INVALID, "the command is empty");
  for (const std::string& entry : environment) {
    if (entry.find('=') == std::string::npos || entry.front() == '=')
      throw Error(HVD_INVALID, fmt::format("environment entry '{}': expected NAME=value", entry));
  }
  argv_ = std::move(argv);
  environment_ = std::move(environment);
}

void Agent::start() {
  std::unique_lock lock(mutex_);
  if (started_) throw Error(HVD_INVALID, "the agent is started already");
  auto loop = std::make_unique<Loop>("hvd-agent");
  std::promise<void> promise;
  loop->post([&] {
    try {
      impl_ = std::make_unique<Impl>(*loop, settings_, logger_, argv_, environment_,
                                     [this](const Status& status) {
                                       {
                                         std::lock_guard inner(mutex_);
                                         result_ = status;
                                         over_ = true;
                                       }
                                       changed_.notify_all();
                                     });
      promise.set_value();
    } catch (...) { promise.set_exception(std::current_exception()); }
  });
  promise.get_future().get();
  loop->post([this] { impl_->dial(); });
  loop_ = std::move(loop);
  started_ = true;
}

Status Agent::wait(Duration timeout) {
  std::unique_lock lock(mutex_);
  if (!started_) return Status(HVD_INVALID, "the agent was not started");
  if (!changed_.wait_until(lock, now() + std::min<Duration>(timeout, std::chrono::hours(24 * 365)),
                           [this] { return over_; })) {
    return Status(HVD_TIMEOUT, fmt::format("the agent of host {} goes on after {:.1f} s", settings_.host,
                                           to_seconds(timeout)));
  }
  return result_;
}

void Agent::stop(const std::string& reason) {
  std::lock_guard lock(mutex_);
  if (!started_) throw Error(HVD_INVALID, "the agent was not started");
  if (loop_) loop_->post([this, reason] { impl_->do_all(impl_->core.stop(reason, now())); });
}

void Agent::drain(const std::string& reason, Duration timeout) {
  std::lock_guard lock(mutex_);
  if (!started_) throw Error(HVD_INVALID, "the agent was not started");
  const Duration longest = timeout > Duration(0) ? timeout : settings_.leave_timeout;
  if (loop_)
    loop_->post([this, reason, longest] { impl_->do_all(impl_->core.drain(reason, longest, now())); });
}

void Agent::close() {
  std::unique_ptr<Loop> loop;
  {
    std::lock_guard lock(mutex_);
    loop = std::move(loop_);
  }
  if (!loop) return;
  std::promise<void> promise;
  loop->post([&] {
    impl_.reset();
    promise.set_value();
  });
  promise.get_future().get();
  std::lock_guard lock(mutex_);
  if (!std::exchange(over_, true)) result_ = Status(HVD_CLOSED, "the agent was closed");
  changed_.notify_all();
}

}  // namespace hvd::agent

// The table of options, their types and defaults, and how their texts are read.
#include "base/options.h"

#include <locale.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <span>

#include "base/status.h"

namespace hvd {
namespace {

constexpr double kDay = 86400;
constexpr double kMany = 1 << 20;
using enum OptionType;
using enum OptionReach;

constexpr OptionSpec kSpecs[] = {
    // Both ends.
    {"job", kString, "", 0, 0, kHere, "name of the job; messages of another job are refused"},
    {"secret", kString, "", 0, 0, kHere,
     "the job's secret, 32 to 512 characters; made by the driver when absent"},
    {"secret_file", kString, "", 0, 0, kHere,
     "file with the job's secret in its first line, which nobody else may read; - is standard input"},
    {"log_level", kString, "warning", 0, 0, kToWorker, "trace, debug, info, warning, error or off"},
    {"backend", kString, "auto", 0, 0, kToWorker,
     "auto, or names of modules separated by commas: tcp, gloo, mpi, nccl, any other (docs/backends.md)"},
    {"interface", kString, "", 0, 0, kToBoth,
     "network interface or address for the backend; absent: the route to the driver"},
    {"plugin_path", kString, "", 0, 0, kToWorker, "directories with backend modules, separated by colons"},
    {"nccl_library", kString, "", 0, 0, kToBoth,
     "file of NCCL's library, for backend nccl; absent: where it is usually found"},
    {"cuda_library", kString, "", 0, 0, kToBoth,
     "file of the CUDA driver's library, for backend nccl; absent: libcuda.so.1"},
    {"local", kString, "auto", 0, 0, kToWorker,
     "what the ranks of a host share memory for: on: all, messages: no data, off: nothing, auto: all, but no data if the "
     "backend's module says that it is fast inside a host"},
    // Worker.
    {"driver", kString, "", 0, 0, kHere,
     "host:port of the driver, or several, separated by commas, of which any may be it; hvdrun sets it"},
    {"worker", kInt, "0", 0, 9.2e18, kHere, "identity that the driver gave to this worker"},
    {"host", kString, "", 0, 0, kHere, "name of this worker's host; absent: the system's"},
    {"slot", kInt, "0", 0, kMany, kHere, "slot of this worker on its host"},
    {"rank", kInt, "-1", -1, kMany, kHere, "rank, for a job without a driver"},
    {"size", kInt, "-1", -1, kMany, kHere, "number of workers, for a job without a driver"},
    {"rendezvous", kString, "", 0, 0, kHere, "host:port where rank 0 serves a job without a driver"},
    {"elastic", kBool, "true", 0, 0, kToModule,
     "whether the job may change; hvd_init says no where mpirun or srun started it without a driver"},
    {"init_timeout", kDuration, "10m", 0.001, kDay, kToWorker,
     "how long hvd_init waits for a place in a generation"},
    {"leave_timeout", kDuration, "30s", 0.001, kDay, kToWorker,
     "how long a worker that wants to leave may stay until the others come to a commit; then it is lost"},
    {"connect_timeout", kDuration, "30s", 0.001, kDay, kToWorker,
     "how long connecting to the driver, and to the peers of a generation, may take"},
    {"driver_timeout", kDuration, "1m", 0.05, kDay, kToWorker,
     "how long a worker goes on without a driver (docs/driver-loss.md); with a silent one at least heartbeat_timeout"},
    {"operation_timeout", kDuration, "10m", 0.001, kDay, kToWorker,
     "how long a collective waits for ranks that do not call it"},
    {"stall_warning", kDuration, "1m", 0, kDay, kToWorker,
     "after how long a waiting collective is reported in the log; 0: never"},
    {"fusion_threshold", kInt, "16777216", 0, 1LL << 40, kToWorker,
     "bytes up to which operations that are ready together run as one; 0: each by itself"},
    {"deterministic", kBool, "false", 0, 0, kToWorker,
     "whether results have the same bits in every run: nothing that depends on timing may change them"},
    {"join_counts", kBool, "false", 0, 0, kToWorker,
     "whether ranks that have joined count in averages, as with values of 0: so it is in Horovod; in host memory alone; "
     "else the average is over those that still train"},
    {"timeline", kString, "", 0, 0, kToWorker,
     "file that gets a trace of what this worker does (docs/timeline.md); %w, %h, %p: worker, host, process"},
    {"shutdown_timeout", kDuration, "1m", 0.001, kDay, kToWorker,
     "how long hvd_shutdown waits for the others"},
    {"segment_bytes", kInt, "1048576", 4096, 1 << 30, kToBoth,
     "size of the pieces in which large tensors are sent"},
    {"encrypt", kString, "auto", 0, 0, kToBoth,
     "TLS 1.3 on connections between workers, with backends tcp and gloo: on, off, auto: where it is cheap, which so far is "
     "nowhere (docs/backends.md)"},
    {"checksum", kBool, "false", 0, 0, kToBoth,
     "whether backends tcp and gloo check with 64 bits what crosses a connection that is not encrypted"},
    {"check_commits", kBool, "false", 0, 0, kToWorker,
     "whether the end of a hidden commit checks that the program has not written what it copies: for "
     "debugging, since its begin and its end both read everything"},
    {"reset_before_sync", kBool, "false", 0, 0, kToWorker,
     "whether reset callbacks run before the state is synced, so that newcomers get what they set; hvd.init of Python's "
     "package says true, as in Horovod"},
    {"divergence_every", kInt, "0", 0, 1 << 30, kToWorker,
     "every so many commits the ranks compare digests, and whoever has other bytes than most is named; 0: never"},
    {"on_divergence", kString, "report", 0, 0, kToWorker,
     "what becomes of it: report (event and log), evict (who differs takes the others' state in the same commit), stop "
     "(HVD_MISMATCH); evict without a majority stops"},
    // Driver.
    {"np", kInt, "0", 0, kMany, kHere, "workers to start with; 0: one for each slot"},
    {"min_np", kInt, "0", 0, kMany, kHere, "fewest workers that the job goes on with; 0: np"},
    {"max_np", kInt, "0", 0, kMany, kHere, "most workers; 0: np with fixed hosts, else every slot"},
    {"torchrun", kBool, "false", 0, 0, kHere,
     "whether workers get torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT "
     "(docs/hosts.md)"},
    {"master_addr", kString, "", 0, 0, kHere, "MASTER_ADDR of these; absent: the first host"},
    {"master_port", kInt, "0", 0, 65535, kHere, "MASTER_PORT of these; 0: one that is free here"},
    {"spares", kInt, "0", 0, kMany, kHere,
     "workers beyond max_np that are started and wait, so that a lost one is replaced at once"},
    {"hosts", kString, "", 0, 0, kHere, "fixed hosts, host:slots separated by commas"},
    {"hostfile", kString, "", 0, 0, kHere, "file with fixed hosts, a line host [slots=N] for each"},
    {"discovery_script", kString, "", 0, 0, kHere, "program that prints host[:slots] lines"},
    {"slots_per_host", kInt, "1", 1, kMany, kHere, "slots of a host for which discovery names none"},
    {"discovery_interval", kDuration, "1s", 0.01, kDay, kHere, "time between two discoveries"},
    {"discovery_timeout", kDuration, "10s", 0.01, kDay, kHere, "how long one discovery may take"},
    {"elastic_timeout", kDuration, "10m", 0.01, kDay, kHere,
     "how long the driver waits for enough slots, and for workers to rejoin"},
    {"start_timeout", kDuration, "5m", 0.01, kDay, kHere,
     "time from the start of a worker to its registration; while its process is seen to run it has slow_timeout "
     "more"},
    {"join_settle", kDuration, "500ms", 0, kDay, kHere,
     "how long a worker that is ready waits for others that are starting"},
    {"feed_timeout", kDuration, "60s", 0, kDay, kHere,
     "how long a newcomer is fed with the last commit at most before it joins; 0: it is not"},
    {"join_pause", kDuration, "100ms", 0, kDay, kHere,
     "a newcomer that is fed joins when what it lacks can be copied within this"},
    {"reset_limit", kInt, "0", 0, kMany, kHere,
     "generations formed after the first before the job is given up; 0: no limit"},
    {"heartbeat_interval", kDuration, "1s", 0.01, kDay, kHere, "time between two signs of life"},
    {"heartbeat_timeout", kDuration, "10s", 0.05, kDay, kHere,
     "silence after which a worker is lost whose process is not known to run"},
    {"slow_timeout", kDuration, "1m", 0.05, kDay, kHere,
     "silence after which a worker is lost though its process runs, and how much longer than start_timeout it may "
     "take to register then; at least heartbeat_timeout"},
    {"stall_shutdown", kDuration, "0s", 0, kDay, kHere,
     "after how long ranks that do not come to an operation for which others wait are evicted; 0: never"},
    {"restart", kBool, "true", 0, 0, kHere, "whether the slot of a lost worker gets a new worker"},
    {"restart_delay_min", kDuration, "1s", 0, kDay, kHere,
     "delay before a slot is used again after its first failure; doubles with each"},
    {"restart_delay_max", kDuration, "1m", 0, kDay, kHere, "longest such delay"},
    {"blocklist_after", kInt, "3", 1, kMany, kHere,
     "failures in a row after which a host is put on the blocklist"},
    {"blocklist_cooldown_min", kDuration, "0s", 0, 100 * kDay, kHere,
     "how long a host stays on the blocklist the first time; 0: for good"},
    {"blocklist_cooldown_max", kDuration, "0s", 0, 100 * kDay, kHere, "longest such time"},
    {"listen", kString, "", 0, 0, kHere,
     "address[:port] where the driver listens; absent: loopback and a free port"},
    {"address_file", kString, "", 0, 0, kHere,
     "file that gets the driver's address and the key to operate its job (hvdrun ctl); removed when the driver ends"},
    {"local_hosts", kBool, "false", 0, 0, kHere,
     "whether every host is this machine, whatever it is called: for trying things out"},
    {"agent", kString, "", 0, 0, kHere,
     "command that runs another one on {host}, to start an agent there; absent: ssh, or srun within a Slurm allocation "
     "(docs/hosts.md)"},
    {"agent_program", kString, "", 0, 0, kHere,
     "hvdrun on other hosts; absent: the same path as here, or hvdrun"},
    {"agent_timeout", kDuration, "1m", 0.05, kDay, kHere,
     "how long an agent's workers live on without a connection to the driver"},
    {"agent_spool", kString, "", 0, 0, kHere,
     "directory where an agent keeps what its workers print while there is no driver; absent: TMPDIR or /var/tmp"},
    {"agent_spool_bytes", kInt, "1073741824", 0, 1LL << 50, kHere,
     "most of it; when it is full the workers' printing waits; 0: nothing is kept there"},
    {"discover_agents", kBool, "false", 0, 0, kHere, "whether the hosts are those whose agents have come"},
    {"stop_grace", kDuration, "5s", 0, kDay, kHere, "time between SIGTERM and SIGKILL"},
    {"output_directory", kString, "", 0, 0, kHere,
     "directory for files of the workers' output, one folder a worker"},
    {"helper", kString, "", 0, 0, kHere,
     "program that a backend needs beside the job and its manifest names; absent: beside the module; off: none"},
    {"journal", kString, "", 0, 0, kHere,
     "directory of the driver's journal, from which a next driver takes the job over; off or absent: none"},
    {"takeover", kBool, "false", 0, 0, kHere,
     "whether workers of this job may run already, whom an earlier driver has left: without a journal they tell what must "
     "be known; job and secret must be the earlier driver's"},
    {"standby", kBool, "false", 0, 0, kHere,
     "wait beside option journal, a directory that both machines see, until the job's driver is gone, and take over then; "
     "job and secret must be that driver's"},
    {"follow", kString, "", 0, 0, kHere,
     "host:port of the job's driver, several separated by commas: stand by for it without its directory, and keep a copy of "
     "its journal in option journal or a private directory; job and secret must be that driver's"},
    {"keeper", kInt, "-1", -1, kMany, kHere,
     "descriptor of the program that keeps this driver; hvdrun sets it"},
    {"children_descriptors", kInt, "0", 0, kMany, kHere,
     "soft limit of descriptors (RLIMIT_NOFILE) of what a driver or an agent starts; 0: its own; hvdrun sets it"},
    {"guard", kString, "", 0, 0, kHere,
     "path of hvd-guard, which ends the workers if the driver is killed; absent: beside the library"},
};

const OptionSpec& spec_of(const std::string& key) {
  for (const OptionSpec& spec : kSpecs) {
    if (key == spec.key) return spec;
  }
  throw Error(HVD_INVALID, fmt::format("unknown option '{}': hvd_options_describe() lists the keys", key));
}

const char* type_name(OptionType type) {
  switch (type) {
    case kString: return "string";
    case kInt: return "integer";
    case kDuration: return "duration";
    case kBool: return "bool";
  }
  return "?";
}

std::string variable_of(std::string_view key) {
  std::string name = fmt::format("HVD_{}", key);
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

// A secret shows up in no message.
std::string shown(const OptionSpec& spec, const std::string& text) {
  return std::string(spec.key) == "secret" ? "(hidden)" : text;
}

struct Unit {
  const char* name;
  int64_t nanoseconds;
};
constexpr Unit kUnits[] = {{"d", 86'400'000'000'000},
                           {"h", 3'600'000'000'000},
                           {"m", 60'000'000'000},
                           {"s", 1'000'000'000},
                           {"ms", 1'000'000},
                           {"us", 1'000},
                           {"ns", 1}};

/// "250ms": in the largest unit of which it is a whole number.
std::string shown(Duration duration) {
  for (const Unit& unit : kUnits) {
    if (duration.count() % unit.nanoseconds == 0 && duration.count() != 0)
      return fmt::format("{}{}", duration.count() / unit.nanoseconds, unit.name);
  }
  return "0s";
}

/// "0.25": seconds, to the nanosecond, so that the text gives the same duration again.
std::string seconds_text(Duration duration) {
  const int64_t nanoseconds = duration.count();
  std::string text =
      fmt::format("{}{}.{:09}", nanoseconds < 0 ? "-" : "", std::abs(nanoseconds / 1'000'000'000),
                  std::abs(nanoseconds % 1'000'000'000));
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

/// A number of seconds, or of the unit that follows it. A double does not hold the nanoseconds of weeks.
std::optional<long double> nanoseconds_of(const std::string& text) {
  // Not std::from_chars, which would bring 22 KB of a static libstdc++ into the library. strtold takes more
  // than is meant.
  if (text.find_first_of("0123456789") == std::string::npos ||
      text.find_first_of("xX+ \t\n\v\f\r") != std::string::npos)
    return std::nullopt;
  static const locale_t plain = ::newlocale(LC_ALL_MASK, "C", nullptr);
  char* stop = nullptr;
  const long double number = ::strtold_l(text.c_str(), &stop, plain);
  if (stop == text.c_str() || !std::isfinite(number)) return std::nullopt;
  const std::string_view name(stop, static_cast<size_t>(text.data() + text.size() - stop));
  if (name.empty()) return number * 1e9L;
  for (const Unit& unit : kUnits) {
    if (name == unit.name) return number * static_cast<long double>(unit.nanoseconds);
  }
  return std::nullopt;
}

[[noreturn]] void unfit(const OptionSpec& spec, const std::string& text) {
  std::string expected = type_name(spec.type);
  if (spec.type == kInt) expected = fmt::format("an integer from {:.0f} to {:.0f}", spec.low, spec.high);
  if (spec.type == kDuration) {
    expected = fmt::format("a duration from {} to {}: seconds, or with a unit (ns, us, ms, s, m, h, d)",
                           shown(seconds(spec.low)), shown(seconds(spec.high)));
  }
  if (spec.type == kBool) expected = "1, 0, true, false, yes, no, on or off";
  throw Error(HVD_INVALID, fmt::format("option {} ({}) is '{}': expected {}", spec.key, variable_of(spec.key),
                                       shown(spec, text), expected));
}

int64_t checked(const OptionSpec& spec, int64_t value) {
  const auto number = static_cast<double>(value);
  if (number < spec.low || number > spec.high) unfit(spec, std::to_string(value));
  return value;
}

Duration checked(const OptionSpec& spec, Duration value) {
  if (value < seconds(spec.low) || value > seconds(spec.high)) unfit(spec, shown(value));
  return value;
}

OptionValue parse(const OptionSpec& spec, const std::string& text) {
  const char* end = text.data() + text.size();
  switch (spec.type) {
    case kString: return text;
    case kInt: {
      int64_t number = 0;
      auto [stop, error] = std::from_chars(text.data(), end, number);
      if (error != std::errc() || stop != end) unfit(spec, text);
      return checked(spec, number);
    }
    case kDuration: {
      const std::optional<long double> number = nanoseconds_of(text);
      // Before it is made an integer: one that is out of range may not fit into one.
      if (!number || *number < spec.low * 1e9 - 0.5 || *number > spec.high * 1e9 + 0.5) unfit(spec, text);
      return checked(spec, Duration(std::llroundl(*number)));
    }
    case kBool:
      for (const char* yes : {"1", "true", "yes", "on"}) {
        if (text == yes) return true;
      }
      for (const char* no : {"0", "false", "no", "off"}) {
        if (text == no) return false;
      }
      unfit(spec, text);
  }
  unfit(spec, text);
}

void require_type(const OptionSpec& spec, OptionType given, const std::string& text) {
  if (spec.type == given) return;
  throw Error(HVD_INVALID,
              fmt::format("option {} takes a {}{}, but a {} was given: {}", spec.key, type_name(spec.type),
                          spec.type == kDuration ? " (hvd_options_set_duration, or text)" : "",
                          type_name(given), shown(spec, text)));
}

}  // namespace

Options::Options()
    : Options([](const std::string& name) -> std::optional<std::string> {
        const char* value = ::secure_getenv(name.c_str());  // none in a set-uid program
        if (value == nullptr) return std::nullopt;
        return std::string(value);
      }) {}

Options::Options(Environment environment) : environment_(std::move(environment)) {}

void Options::set(const std::string& key, const std::string& text) {
  values_[key] = parse(spec_of(key), text);
}

void Options::set(const std::string& key, int64_t value) {
  const OptionSpec& spec = spec_of(key);
  require_type(spec, kInt, std::to_string(value));
  values_[key] = checked(spec, value);
}

void Options::set(const std::string& key, Duration value) {
  const OptionSpec& spec = spec_of(key);
  require_type(spec, kDuration, shown(value));
  values_[key] = checked(spec, value);
}

void Options::set(const std::string& key, bool value) {
  const OptionSpec& spec = spec_of(key);
  require_type(spec, kBool, value ? "true" : "false");
  values_[key] = value;
}

bool Options::is_set(const std::string& key) const {
  spec_of(key);
  return (values_.contains(key) || environment_(variable_of(key)).has_value()) && !text(key).empty();
}

OptionValue Options::value(const std::string& key) const {
  const OptionSpec& spec = spec_of(key);
  if (auto found = values_.find(key); found != values_.end()) return found->second;
  if (auto text = environment_(variable_of(key))) return parse(spec, *text);
  return parse(spec, spec.fallback);
}

std::string Options::text(const std::string& key) const {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return v;
        } else if constexpr (std::is_same_v<T, Duration>) {
          return seconds_text(v);
        } else {
          return fmt::format("{}", v);
        }
      },
      value(key));
}

std::vector<std::pair<std::string, std::string>> Options::given() const {
  std::vector<std::pair<std::string, std::string>> result;
  for (const auto& [key, value] : values_) result.emplace_back(key, text(key));
  return result;
}

std::vector<std::string> Options::for_workers() const {
  std::vector<std::string> variables;
  for (const OptionSpec& spec : kSpecs) {
    if ((spec.reach == kToWorker || spec.reach == kToBoth) && is_set(spec.key))
      variables.push_back(variable_of(spec.key) + "=" + text(spec.key));
  }
  return variables;
}

std::vector<std::pair<std::string, std::string>> Options::for_modules() const {
  std::vector<std::pair<std::string, std::string>> result;
  for (const OptionSpec& spec : kSpecs) {
    if (spec.reach != kToModule && spec.reach != kToBoth) continue;
    std::string value = spec.type == kBool ? (boolean(spec.key) ? "1" : "0") : text(spec.key);
    if (!value.empty()) result.emplace_back(spec.key, std::move(value));
  }
  return result;
}

const std::string& Options::describe() {
  static const std::string text = [] {
    std::string lines;
    for (const OptionSpec& spec : kSpecs) {
      lines += fmt::format("{} ({}, default {}, {}): {}\n", spec.key, type_name(spec.type),
                           *spec.fallback == 0 ? "none" : spec.fallback, variable_of(spec.key), spec.meaning);
    }
    return lines;
  }();
  return text;
}

}  // namespace hvd

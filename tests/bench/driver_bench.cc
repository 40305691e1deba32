// What a generation costs the driver as jobs grow. The membership alone, and the whole driver with workers
// that speak the control channel and nothing else (light_workers.h). Prints a JSON object for each size.
//
// The membership's times are a processor's, all others go by the clock.
//
// Arguments: [--membership 16,1000,100000] [--workers 16,256,1000] [--rounds 5] [--address BYTES] [--quiet
// SECONDS] [--kept] [--log]. A size of 0 leaves that part out. The driver runs in a process of its own, so
// that its memory and its share of a core are its own; each of the two processes needs a descriptor for each
// worker.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/loop.h"
#include "driver/supervisor.h"
#include "light_workers.h"
#include "membership/journal.h"
#include "membership/membership.h"
#include "membership/takeover.h"

namespace {

using namespace hvd;
using namespace hvd::bench;
using membership::HostSlots;

struct Arguments {
  std::vector<int32_t> membership{16, 1000, 10000, 100000}, workers{16, 256, 1000};
  int32_t rounds = 5;
  size_t address = 130;  // bytes: of shared memory and tcp
  double quiet = 5;      // seconds, for heartbeats
  bool kept = false;     // workers keep their addresses from generation to generation
  bool log = false;
};

std::vector<int32_t> numbers(const char* text) {
  std::vector<int32_t> found;
  for (const char* end = text + std::strlen(text); text < end;) {
    int32_t value = 0;
    const auto [stop, error] = std::from_chars(text, end, value);
    if (error != std::errc()) std::abort();
    if (value > 0) found.push_back(value);
    text = stop + 1;
  }
  return found;
}

Arguments arguments_of(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; ++i) {
    const std::string key = argv[i];
    if (key == "--log" || key == "--kept") {
      (key == "--log" ? a.log : a.kept) = true;
      continue;
    }
    if (i + 1 == argc) {
      std::fprintf(stderr, "%s needs a value\n", key.c_str());
      std::exit(2);
    }
    const char* value = argv[++i];
    if (key == "--membership")
      a.membership = numbers(value);
    else if (key == "--workers")
      a.workers = numbers(value);
    else if (key == "--rounds")
      a.rounds = std::max(1, std::atoi(value));
    else if (key == "--address")
      a.address = static_cast<size_t>(std::atol(value));
    else if (key == "--quiet")
      a.quiet = std::atof(value);
    else {
      std::fprintf(stderr, "unknown argument %s\n", key.c_str());
      std::exit(2);
    }
  }
  return a;
}

std::vector<HostSlots> hosts_for(int32_t workers) {
  std::vector<HostSlots> hosts;
  for (int32_t left = workers; left > 0; left -= kPerHost) {
    hosts.push_back({"node-" + std::to_string(hosts.size()) + ".cluster.local", std::min(left, kPerHost)});
  }
  return hosts;
}

struct Series {
  std::vector<double> values;
  void add(double v) { values.push_back(v); }
  std::string text(double scale) {
    if (values.empty()) return "null";
    std::sort(values.begin(), values.end());
    char line[96];
    std::snprintf(line, sizeof line, "[%.3f, %.3f, %.3f]", values.front() * scale,
                  values[values.size() / 2] * scale, values.back() * scale);
    return line;
  }
};

/// Of a processor: what others do on the machine does not count.
double thread_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// ---- the membership alone -----------------------------------------------------------------------

membership::ReadyEvent ready_event(const std::string& host, uint64_t left, size_t address) {
  membership::ReadyEvent event;
  event.left_generation = left;
  event.has_state = left > 0;
  event.revision = left;
  event.host = host;
  event.lost_peer = left > 0;
  event.offers.push_back({"tcp", "", 1, 0xffff, 0xff, std::vector<uint8_t>(address, 7)});
  event.settings.push_back({"local", "auto"});
  return event;
}

/// Forms n workers, loses one of them `rounds` times, and says what the decisions took.
void bench_membership(int32_t n, const Arguments& arguments) {
  using namespace membership;
  MembershipConfig config;
  config.np = n;
  config.min_np = n / 2;
  config.max_np = n;
  config.hosts_fixed = true;
  config.restart = false;
  config.blocklist_after = 0;
  Time time{};
  Membership job(config, time);
  const std::vector<HostSlots> hosts = hosts_for(n);
  std::vector<std::pair<uint64_t, std::string>> workers;
  std::vector<Record> records;
  std::shared_ptr<const Roster> roster, next_roster;  // the newest one is kept, as a driver keeps it
  const auto took = [&](auto event) {
    const double began = thread_seconds();
    const std::vector<Action> actions = event();
    static_cast<void>(job.next_tick());
    job.take_records(&records);
    const double seconds = thread_seconds() - began;
    for (const Action& action : actions) {
      if (const auto* start = std::get_if<StartWorker>(&action))
        workers.emplace_back(start->worker, start->host);
    }
    return seconds;
  };
  double first = took([&] { return job.hosts_changed(hosts, time); });
  // Events are made before: what is measured are the decisions.
  const auto everyone = [&](uint64_t left) {
    std::vector<ReadyEvent> events;
    for (const auto& [id, host] : workers) events.push_back(ready_event(host, left, arguments.address));
    const double began = thread_seconds();
    for (size_t i = 0; i < workers.size(); ++i) {
      for (const Action& action : job.worker_ready(workers[i].first, std::move(events[i]), time)) {
        if (const auto* assign = std::get_if<Assign>(&action)) next_roster = assign->roster;
      }
      static_cast<void>(job.next_tick());
    }
    job.take_records(&records);
    return thread_seconds() - began;
  };
  // The roster before is freed when the assignments of the next one have been sent: nobody waits for that.
  const auto let_go = [&] {
    const double began = thread_seconds();
    roster = std::exchange(next_roster, nullptr);
    return thread_seconds() - began;
  };
  const auto synced = [&] {
    const double began = thread_seconds();
    for (const auto& [id, host] : workers) {
      static_cast<void>(job.worker_synced(id, job.generation(), job.generation(), time));
      static_cast<void>(job.next_tick());
    }
    job.take_records(&records);
    return thread_seconds() - began;
  };
  first += everyone(0);
  if (job.generation() != 1) std::abort();
  let_go();
  Series lost, ready, freed, sync;
  sync.add(synced());
  uint64_t random = 1;
  for (int32_t round = 0; round < arguments.rounds && workers.size() > static_cast<size_t>(config.min_np);
       ++round) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    const size_t victim = (random >> 33) % workers.size();
    const uint64_t id = workers[victim].first;
    workers.erase(workers.begin() + static_cast<ptrdiff_t>(victim));
    const uint64_t generation = job.generation();
    const double loss = took([&] { return job.worker_lost(id, LossKind::kConnectionClosed, "", time); });
    lost.add(loss);
    ready.add(loss + everyone(generation));
    if (job.generation() != generation + 1) std::abort();
    freed.add(let_go());
    sync.add(synced());
  }
  // The next driver: all of them come back, and it asks for the rank of each.
  const KnownJob known = job.known();
  Series taken;
  for (int32_t round = 0; round < arguments.rounds; ++round) {
    const double began = thread_seconds();
    Membership next(config, known, Settle{seconds(10), seconds(2), seconds(7)}, time);
    static_cast<void>(next.hosts_changed(hosts, time));
    BackEvent back;
    back.generation = known.generation;
    back.size = static_cast<int32_t>(known.members.size());
    back.synced = back.has_state = true;
    for (const uint64_t id : known.members) {
      ++back.rank;
      static_cast<void>(next.worker_back(id, back, time));
      if (next.rank_of(id) != back.rank) std::abort();
    }
    if (next.gathering()) std::abort();
    taken.add(thread_seconds() - began);
  }
  std::printf(
      "{\"membership\": %d, \"first_ms\": %.3f, \"loss_ms\": %s, \"decided_ms\": %s, \"freed_ms\": %s, "
      "\"synced_ms\": %s, \"taken_over_ms\": %s, \"of\": \"min, median, max\"}\n",
      n, first * 1e3, lost.text(1e3).c_str(), ready.text(1e3).c_str(), freed.text(1e3).c_str(),
      sync.text(1e3).c_str(), taken.text(1e3).c_str());
  std::fflush(stdout);
}

// ---- the driver, in a process of its own --------------------------------------------------------

/// Tells the other process whom it has to play.
class PipeLauncher final : public launch::Launcher {
 public:
  PipeLauncher(Loop& loop, int fd, Events events) : loop_(loop), fd_(fd), events_(std::move(events)) {}
  void start(launch::LaunchRequest request) override {
    if (::write(fd_, &request.worker, sizeof request.worker) != sizeof request.worker) std::abort();
  }
  void stop(uint64_t worker, Duration) override { kill(worker); }
  void kill(uint64_t worker) override {
    loop_.post([this, worker] {
      events_.exited(worker, 0);
      events_.gone(worker);
    });
  }
  void set_rank(uint64_t, int32_t) override {}
  std::optional<int32_t> ended(uint64_t) const override { return std::nullopt; }
  launch::Life life(uint64_t, int64_t) const override { return launch::Life::kRunning; }
  void close(Duration) override {}

 private:
  Loop& loop_;
  const int fd_;
  const Events events_;
};

[[noreturn]] void run_driver(int32_t n, bool log, int to_workers, int from_workers) {
  Loop loop("driver");
  driver::SupervisorConfig config;
  driver::Settings& s = config.settings;
  s.job = kJob;
  s.secret = kSecret;
  s.listen = "127.0.0.1:0";
  s.np = s.max_np = n;
  s.min_np = n / 2;
  s.membership.restart = false;
  s.membership.blocklist_after = 0;
  s.membership.start_timeout = s.membership.elastic_timeout = seconds(600);
  s.heartbeat_interval = seconds(1);
  s.heartbeat_timeout = seconds(10);
  s.slow_timeout = seconds(600);  // workers say nothing while others connect
  s.stop_grace = s.leave_timeout = seconds(1);
  s.discovery_interval = s.discovery_timeout = seconds(1);
  const auto print = [](void*, hvd_log_level, const char* line) {
    std::fprintf(stderr, "driver: %s\n", line);
  };
  config.logger = log ? std::make_shared<Logger>(HVD_LOG_INFO, Callback<hvd_log_fn>(print, nullptr, nullptr))
                      : std::make_shared<Logger>();
  config.make_launcher = [&](launch::Launcher::Events events) {
    return std::make_unique<PipeLauncher>(loop, to_workers, std::move(events));
  };
  config.listening = [&](const std::string&, uint16_t port) {
    const uint64_t told = port;
    if (::write(to_workers, &told, sizeof told) != sizeof told) std::abort();
    return std::string();
  };
  config.changed = [](const driver::DriverStatus&) {};
  std::unique_ptr<driver::Supervisor> supervisor;
  loop.post([&] {
    supervisor = std::make_unique<driver::Supervisor>(loop, std::move(config),
                                                      driver::make_fixed_discovery(hosts_for(n)));
    supervisor->discover_first([&](const Status&) { loop.post([&] { supervisor->begin(); }); });
  });
  char end = 0;
  while (::read(from_workers, &end, 1) > 0) {}  // until the other process is done
  ::_exit(0);
}

struct Usage {
  double cpu = 0;    // seconds
  double bytes = 0;  // resident
};

Usage usage_of(pid_t process) {
  Usage usage;
  const std::string base = "/proc/" + std::to_string(process);
  std::ifstream stat(base + "/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  unsigned long user = 0, system = 0;
  std::sscanf(text.c_str() + text.rfind(')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
              &user, &system);
  usage.cpu = static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  std::ifstream statm(base + "/statm");
  double pages = 0;
  statm >> pages >> pages;
  usage.bytes = pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
  return usage;
}

void bench_driver(int32_t n, const Arguments& arguments) {
  int to_workers[2], to_driver[2];
  if (::pipe2(to_workers, O_CLOEXEC) != 0 || ::pipe2(to_driver, O_CLOEXEC) != 0) std::abort();
  const pid_t process = ::fork();
  if (process < 0) std::abort();
  if (process == 0) {
    ::close(to_driver[1]);
    ::close(to_workers[0]);
    run_driver(n, arguments.log, to_workers[1], to_driver[0]);
  }
  ::close(to_workers[1]);
  ::close(to_driver[0]);
  uint64_t port = 0;
  if (::read(to_workers[0], &port, sizeof port) != sizeof port) std::abort();
  const Usage before = usage_of(process);
  const Time began = now();
  {
    Workers workers(static_cast<uint16_t>(port), arguments.address, arguments.kept);
    for (int32_t i = 0; i < n; ++i) {
      uint64_t id = 0;
      if (::read(to_workers[0], &id, sizeof id) != sizeof id) std::abort();
      workers.start(id);
    }
    auto count = static_cast<size_t>(n);
    bool all = workers.await(1, count, seconds(280));
    const double formed = to_seconds(workers.last_assigned() - began);
    const uint64_t first_bytes = workers.received();
    const Usage after_first = usage_of(process);
    Series aborted, reformed;
    std::vector<double> bytes;
    uint64_t random = 1;
    for (int32_t round = 0; all && round < arguments.rounds && count > static_cast<size_t>(n) / 2 + 1;
         ++round) {
      ::usleep(200'000);  // the answers of the round before are through
      random = random * 6364136223846793005u + 1442695040888963407u;
      const uint64_t generation = workers.newest(), had = workers.received();
      const Time at = workers.lose(random >> 33);
      all = workers.await(generation + 1, --count, seconds(120));
      aborted.add(to_seconds(workers.last_abort() - at));
      reformed.add(to_seconds(workers.last_assigned() - at));
      bytes.push_back(static_cast<double>(workers.received() - had));
    }
    ::usleep(300'000);
    workers.beat(true);
    ::usleep(1'200'000);
    const Usage quiet = usage_of(process);
    ::usleep(static_cast<useconds_t>(arguments.quiet * 1e6));
    const Usage after = usage_of(process);
    workers.beat(false);
    std::sort(bytes.begin(), bytes.end());
    std::printf(
        "{\"workers\": %d, \"complete\": %s, \"formed_s\": %.3f, \"first_bytes_a_worker\": %.0f, \"aborted_ms\": %s, "
        "\"reformed_ms\": %s, \"bytes_a_survivor\": %.0f, \"driver_kb_a_worker\": %.1f, \"driver_kb_at_first\": %.1f, "
        "\"driver_cpu_s_to_form\": %.2f, \"heartbeats_share_of_a_core\": %.4f, \"complaints\": %llu, \"of\": \"min, median, max\"}\n",
        n, all ? "true" : "false", formed, static_cast<double>(first_bytes) / n, aborted.text(1e3).c_str(),
        reformed.text(1e3).c_str(), bytes.empty() ? 0 : bytes[bytes.size() / 2] / static_cast<double>(count),
        (after.bytes - before.bytes) / 1024 / n, (after_first.bytes - before.bytes) / 1024 / n,
        after_first.cpu - before.cpu, (after.cpu - quiet.cpu) / arguments.quiet,
        static_cast<unsigned long long>(workers.complaints()));
    std::fflush(stdout);
    workers.close();
  }
  ::close(to_driver[1]);
  ::close(to_workers[0]);
  int status = 0;
  ::waitpid(process, &status, 0);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = arguments_of(argc, argv);
  ::signal(SIGPIPE, SIG_IGN);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  for (const int32_t n : arguments.membership) bench_membership(n, arguments);
  for (const int32_t n : arguments.workers) {
    if (static_cast<rlim_t>(n) + 100 > files.rlim_cur) {
      std::printf("{\"workers\": %d, \"left_out\": \"%llu descriptors are the limit\"}\n", n,
                  static_cast<unsigned long long>(files.rlim_cur));
      continue;
    }
    bench_driver(n, arguments);
  }
  return 0;
}

// What a generation costs the driver as jobs grow. The membership alone, and the whole driver with workers
// that speak the control channel and nothing else: real authenticated connections, many on one thread. Prints
// a JSON object for each size.
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
#include <array>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/loop.h"
#include "driver/supervisor.h"
#include "membership/journal.h"
#include "membership/membership.h"
#include "wire/channel.h"
#include "wire/tls.h"

namespace {

using namespace hvd;
using membership::HostSlots;

constexpr int32_t kPerHost = 8;
constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";
constexpr char kJob[] = "driver_bench";

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
  int32_t formed = 0;
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
        formed += std::holds_alternative<Assign>(action) ? 1 : 0;
      }
      static_cast<void>(job.next_tick());
    }
    job.take_records(&records);
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
  Series lost, ready, sync;
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
    sync.add(synced());
  }
  std::printf(
      "{\"membership\": %d, \"first_ms\": %.3f, \"loss_ms\": %s, \"decided_ms\": %s, \"synced_ms\": %s, "
      "\"of\": \"min, median, max\"}\n",
      n, first * 1e3, lost.text(1e3).c_str(), ready.text(1e3).c_str(), sync.text(1e3).c_str());
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
  launch::Life life(uint64_t, int64_t) const override { return launch::Life::kUnknown; }
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
  s.heartbeat_timeout = s.slow_timeout = seconds(600);  // workers say nothing while others connect
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

// ---- its workers --------------------------------------------------------------------------------

class Workers {
 public:
  Workers(uint16_t port, const Arguments& arguments)
      : driver_("127.0.0.1:" + std::to_string(port)), address_(arguments.address), kept_(arguments.kept) {}

  void start(uint64_t worker) {
    loop_.post([this, worker] {
      clients_.push_back(std::make_unique<Client>());
      Client& client = *clients_.back();
      client.worker = worker;
      waiting_.push_back(&client);
      connect_next();
    });
  }

  /// Until `count` workers are in a generation not older than this.
  bool await(uint64_t generation, size_t count, Duration timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return newest_ >= generation && assigned_ >= count; });
  }
  Time last_abort() const {
    return on_loop<Time>([this] { return last_abort_; });
  }
  Time last_assigned() const {
    return on_loop<Time>([this] { return last_assigned_; });
  }
  uint64_t received() const {
    return on_loop<uint64_t>([this] { return received_; });
  }
  uint64_t complaints() const {
    return on_loop<uint64_t>([this] { return complaints_; });
  }
  uint64_t newest() {
    const std::lock_guard lock(mutex_);
    return newest_;
  }

  /// Closes the connection of one that is chosen by this number.
  Time lose(uint64_t random) {
    return on_loop<Time>([&] {
      const size_t index = random % clients_.size();
      std::shared_ptr<wire::Channel> channel = clients_[index]->channel;
      clients_.erase(clients_.begin() + static_cast<ptrdiff_t>(index));
      const Time at = now();
      channel->close(Duration(0));
      return at;
    });
  }
  void close() {
    on_loop<int>([this] {
      timer_.reset();
      for (auto& client : clients_) {
        if (client->channel) client->channel->close(Duration(0));
      }
      return 0;
    });
  }
  /// Each as often as the driver has told, but kMostSeldom at least; every ten milliseconds a part of them.
  void beat(bool on) {
    on_loop<int>([&] {
      timer_ = on ? std::make_unique<Loop::Timer>(loop_) : nullptr;
      if (on) beat_next();
      return 0;
    });
  }

 private:
  struct Client {
    uint64_t worker = 0, sequence = 0, generation = 0;
    std::shared_ptr<wire::Channel> channel;
  };

  template <class T>
  T on_loop(auto function) const {
    std::unique_ptr<T> result;
    std::mutex mutex;
    std::condition_variable done;
    std::unique_lock lock(mutex);
    loop_.post([&] {
      auto value = std::make_unique<T>(function());
      const std::lock_guard inner(mutex);
      result = std::move(value);
      done.notify_all();
    });
    done.wait(lock, [&] { return result != nullptr; });
    return *result;
  }

  /// As many at a time as a driver takes without keeping them waiting.
  void connect_next() {
    for (; !waiting_.empty() && connecting_ < 200; ++connecting_) {
      connect(*waiting_.front());
      waiting_.pop_front();
    }
  }

  void connect(Client& client) {
    wire::connect_channel(loop_, driver_, kSecret, wire::worker_identity(client.worker), {}, seconds(300),
                          [this, &client](std::shared_ptr<wire::Channel> channel, const Status& why) {
                            --connecting_;
                            loop_.post([this] { connect_next(); });
                            if (!channel) { return complain(client, "could not connect", why.message); }
                            begin(client, std::move(channel));
                          });
  }

  void begin(Client& client, std::shared_ptr<wire::Channel> channel) {
    client.channel = std::move(channel);
    client.channel->trust();
    client.channel->set_handlers(
        {[this, &client](std::span<const uint8_t> frame) { received(client, frame); },
         [this, &client](const Status& why) { complain(client, "closed", why.message); }});
    wire::HelloT hello;
    hello.protocol = wire::kProtocol;
    hello.library = "bench";
    hello.host = host_of(client);
    hello.takes_waiting = hello.takes_rosters = true;
    send(client, 0, std::move(hello));
    ready(client, 0);
  }

  void complain(const Client& client, const char* what, const std::string& why) {
    if (++complaints_ > 3) return;
    std::fprintf(stderr, "worker %llu %s: %s\n", static_cast<unsigned long long>(client.worker), what,
                 why.c_str());
  }

  static std::string host_of(const Client& client) {
    return "node-" + std::to_string((client.worker - 1) / kPerHost) + ".cluster.local";
  }

  template <class Body>
  void send(Client& client, uint64_t generation, Body body) {
    wire::EnvelopeT message = wire::envelope(kJob, client.worker, generation, std::move(body));
    message.sequence = ++client.sequence;
    client.channel->send(wire::encode(message));
  }

  void ready(Client& client, uint64_t left) {
    wire::ReadyT ready;
    ready.cause = left == 0 ? wire::Cause::Start : wire::Cause::PeerLost;
    ready.has_state = left > 0;
    ready.revision = left;
    ready.digest = std::make_unique<wire::Digest>(left, 2);
    auto address = std::make_unique<wire::AddressT>();
    address->backend = "tcp";
    address->memories = 1;
    address->dtypes = 0xffff;
    address->collectives = 0xff;
    address->blob = blob_of(client, kept_ ? 0 : left);
    ready.addresses.push_back(std::move(address));
    auto setting = std::make_unique<wire::SettingT>();
    setting->name = "local";
    setting->value = "auto";
    ready.settings.push_back(std::move(setting));
    send(client, left, std::move(ready));
  }

  /// As an address of shared memory and tcp is: about a half is of the host, and the rest of this worker and
  /// generation.
  std::vector<uint8_t> blob_of(const Client& client, uint64_t left) const {
    std::vector<uint8_t> blob(address_);
    const uint64_t host = (client.worker - 1) / kPerHost, own = client.worker << 32 | left;
    for (size_t i = 0; i < blob.size(); ++i) {
      const bool fresh = (i >= 50 && i < 70) || (i >= 90 && i < 124);
      uint64_t mixed = ((fresh ? own : host) + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
      mixed ^= mixed >> 29;
      blob[i] = static_cast<uint8_t>(mixed * 0x94d049bb133111ebu >> 56);
    }
    return blob;
  }

  // No message is unpacked: in a job each worker does that on a core of its own.
  void received(Client& client, std::span<const uint8_t> frame) {
    received_ += frame.size() + 4;
    const wire::Envelope* message = wire::GetEnvelope(frame.data());
    const uint64_t generation = message->generation();
    switch (message->body_type()) {
      case wire::Body::Assignment: {
        client.generation = generation;
        send(client, generation, wire::SyncedT());
        last_assigned_ = now();
        const std::lock_guard lock(mutex_);
        if (generation > newest_) {
          newest_ = generation;
          assigned_ = 0;
        }
        ++assigned_;
        changed_.notify_all();
        return;
      }
      case wire::Body::Abort: last_abort_ = now(); return ready(client, generation);
      case wire::Body::HeartbeatAck:
        if (const auto* ack = message->body_as_HeartbeatAck(); ack->interval_ms() > 0)
          interval_ms_ = ack->interval_ms();
        return;
      case wire::Body::Refused:
        return complain(client, "refused", message->body_as_Refused()->reason()->c_str());
      default: return;
    }
  }

  void beat_next() {
    timer_->start(milliseconds(10), [this] { beat_next(); });
    const auto parts = static_cast<size_t>(std::clamp<int64_t>(interval_ms_, 100, kMostSeldom)) / 10;
    const size_t part = turn_++ % parts;
    for (size_t i = part; i < clients_.size(); i += parts) {
      if (!clients_[i]->channel) continue;
      wire::HeartbeatT beat;
      beat.sent_ns = now().time_since_epoch().count();
      beat.progress = std::make_unique<wire::ProgressT>();
      beat.progress->commits = turn_;
      send(*clients_[i], 0, std::move(beat));
    }
  }

  const std::string driver_;
  const size_t address_;
  const bool kept_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::deque<Client*> waiting_;  // to be connected
  size_t connecting_ = 0;
  std::unique_ptr<Loop::Timer> timer_;
  size_t turn_ = 0;
  static constexpr int64_t kMostSeldom = 3333;  // of the default time-out, which the bench's own one is not
  int64_t interval_ms_ = 1000;
  uint64_t received_ = 0, complaints_ = 0;
  Time last_abort_{}, last_assigned_{};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t newest_ = 0;
  size_t assigned_ = 0;
  mutable Loop loop_{"workers"};
};

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
    Workers workers(static_cast<uint16_t>(port), arguments);
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

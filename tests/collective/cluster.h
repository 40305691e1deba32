// All ranks of a generation in one process: engines over threads, or over the real Gloo module.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/callback.h"
#include "collective/engine.h"
#include "collective/in_process_backend.h"
#include "patience.h"
#include "selection/selection.h"

namespace hvd::collective::testing {

inline const Duration kDeadline = hvd::test::patient(std::chrono::seconds(60));

struct ClusterConfig {
  int32_t size = 3;
  std::string backend = "threads";
  Duration stall_warning = seconds(60);
  bool start = true;
  size_t small_data = 64 << 10;
  uint64_t fusion_threshold = 16 << 20;
  bool deterministic = false;
  bool join_counts = false;
  bool takes_parts = false;  // the backend "threads"
  std::function<uint64_t(int32_t rank)> word = {};
  std::function<Status(uint64_t word)> interrupts = {};
  std::function<void(const std::string& text, const std::vector<int32_t>& missing, Duration waited)> stalled =
      {};
  TimelinePtr timeline = {};                     // of rank 0
  hvd::testing::DeviceMemory* device = nullptr;  // a double's
  std::function<void(int32_t rank)> aborting = {};
  std::function<void(int32_t rank, const Status& why)> broken = {};
  size_t most_under_way = kMostUnderWay;
};

class Cluster {
 public:
  explicit Cluster(ClusterConfig config = {}) : hub(config.size), size(config.size) {
    lines_ = std::make_shared<Lines>();
    hub.device = config.device;
    hub.takes_parts = config.takes_parts;
    for (int32_t r = 0; r < size; ++r) hosts.push_back("h" + std::to_string(r / 2));
    const hvd_log_fn keep = [](void* lines, hvd_log_level, const char* line) {
      auto* l = static_cast<Lines*>(lines);
      std::lock_guard lock(l->mutex);
      l->lines.push_back(line);
    };
    logger = std::make_shared<Logger>(HVD_LOG_TRACE, Callback<hvd_log_fn>(keep, lines_.get(), nullptr));
    links_.resize(static_cast<size_t>(size));
    for (int32_t r = 0; r < size; ++r) {
      Link& link = links_[static_cast<size_t>(r)];
      backend::HostHandlers handlers;
      handlers.message = [gate = link.gate](uint64_t, int32_t source, std::span<const uint8_t> data) {
        std::shared_lock lock(gate->mutex);
        if (gate->engine != nullptr) gate->engine->deliver(source, data);
      };
      handlers.failure = [](uint64_t, int32_t, const std::string&) {};
      if (config.backend == "threads") {
        link.instance = std::make_unique<InProcessBackend>(hub, r, std::move(handlers));
        continue;
      }
      open_status = selection::open(Options(), config.backend, {{"interface", "lo"}}, std::move(handlers),
                                    &link.instance);
      if (!open_status.ok()) return;
    }
    make_engines(config);
    if (config.backend != "threads") connect();
    if (open_status.ok() && config.start) {
      for (auto& e : engines) e->start();
    }
  }

  ~Cluster() {
    for (auto& e : engines) {
      if (e != nullptr) e->fail(Status(HVD_CLOSED, "the test is over"));
    }
    for (auto& link : links_) {  // no message may come any more before an engine goes
      std::unique_lock lock(link.gate->mutex);
      link.gate->engine = nullptr;
    }
    engines.clear();
    for (auto& link : links_) link.instance.reset();
  }

  /// Calls `make(rank)` on every rank of `ranks` (all if empty) and gives back the operations.
  template <class Make>
  std::vector<std::shared_ptr<Operation>> submit(Make make, std::vector<int32_t> ranks = {}) {
    std::vector<std::shared_ptr<Operation>> ops(static_cast<size_t>(size));
    if (ranks.empty())
      for (int32_t r = 0; r < size; ++r) ranks.push_back(r);
    for (const int32_t r : ranks) ops[static_cast<size_t>(r)] = engine(r).submit(make(r));
    return ops;
  }

  Engine& engine(int32_t r) { return *engines[static_cast<size_t>(r)]; }
  InProcessBackend& backend_of(int32_t r) {
    return static_cast<InProcessBackend&>(*links_[static_cast<size_t>(r)].instance);
  }
  int wakes(int32_t r) { return *links_[static_cast<size_t>(r)].wakes; }
  /// When the engine asked to be woken last.
  Time wake(int32_t r) { return *links_[static_cast<size_t>(r)].wake; }
  /// All that an engine asked to be woken for, each in time.
  void run_timers(int32_t r) {
    for (Time last{}; last != wake(r);) {
      last = wake(r);
      engine(r).tick(last);
    }
  }
  std::vector<std::string> lines() {
    std::lock_guard lock(lines_->mutex);
    return lines_->lines;
  }

  struct Lines {
    std::mutex mutex;
    std::vector<std::string> lines;
  };
  std::shared_ptr<Lines> lines_;
  LoggerPtr logger;
  InProcessHub hub;
  const int32_t size;
  std::vector<std::string> hosts;
  Status open_status;
  std::vector<std::shared_ptr<Engine>> engines;

 private:
  struct Gate {
    std::shared_mutex mutex;
    Engine* engine = nullptr;
  };
  struct Link {
    std::shared_ptr<Gate> gate = std::make_shared<Gate>();
    std::unique_ptr<backend::Instance> instance;
    std::shared_ptr<std::atomic<int>> wakes = std::make_shared<std::atomic<int>>(0);
    std::shared_ptr<std::atomic<Time>> wake = std::make_shared<std::atomic<Time>>();
  };

  void make_engines(const ClusterConfig& config) {
    for (int32_t r = 0; r < size; ++r) {
      Link& link = links_[static_cast<size_t>(r)];
      EngineConfig ec;
      ec.generation = hub.generation;
      ec.rank = r;
      ec.hosts = hosts;
      ec.stall_warning = config.stall_warning;
      ec.logger = logger;
      ec.small_data = config.small_data;
      ec.most_under_way = config.most_under_way;
      ec.fusion_threshold = config.fusion_threshold;
      ec.deterministic = config.deterministic;
      ec.join_counts = config.join_counts;
      if (config.word) ec.word = [word = config.word, r] { return word(r); };
      ec.interrupts = config.interrupts;
      if (config.aborting) ec.aborting = [aborting = config.aborting, r] { aborting(r); };
      ec.stalled = config.stalled;
      if (r == 0) ec.timeline = config.timeline;
      if (config.broken) ec.broken = [broken = config.broken, r](const Status& why) { broken(r, why); };
      ec.wake_at = [wakes = link.wakes, wake = link.wake](Time when) {
        *wake = when;
        ++*wakes;
      };
      engines.push_back(Engine::open(std::move(ec), *link.instance));
      std::unique_lock lock(link.gate->mutex);
      link.gate->engine = engines.back().get();
    }
  }

  void connect() {
    std::vector<backend::Member> members(static_cast<size_t>(size));
    for (size_t r = 0; r < members.size(); ++r) {
      members[r].worker = r + 1;
      members[r].host = hosts[r];
      if (open_status = links_[r].instance->offers(&members[r].offers); !open_status.ok()) return;
    }
    std::vector<Status> statuses(members.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < members.size(); ++r) {
      threads.emplace_back([&, r] {
        statuses[r] =
            links_[r].instance->connect(hub.generation, static_cast<int32_t>(r), members, kDeadline);
      });
    }
    for (auto& t : threads) t.join();
    for (auto& status : statuses) {
      if (!status.ok()) open_status = status;
    }
  }

  std::vector<Link> links_;
};

/// Waits for all operations (those that are not NULL) and expects this outcome of each.
inline void expect_all(const std::vector<std::shared_ptr<Operation>>& ops, hvd_status code = HVD_OK) {
  for (size_t r = 0; r < ops.size(); ++r) {
    if (ops[r] == nullptr) continue;
    ASSERT_TRUE(ops[r]->wait(kDeadline)) << "rank " << r << ": " << ops[r]->waiting_for();
    EXPECT_EQ(ops[r]->status().code, code) << "rank " << r << ": " << ops[r]->status().message;
  }
}

template <class T>
Tensor tensor(std::vector<T>& values, hvd_dtype dtype, std::vector<int64_t> shape = {}) {
  if (shape.empty()) shape = {static_cast<int64_t>(values.size())};
  return Tensor{values.data(), dtype, std::move(shape)};
}

inline Submission named(const std::string& name, Kind kind) {
  Submission s;
  s.name = name;
  s.kind = kind;
  return s;
}

template <class T>
Submission allreduce(const std::string& name, std::vector<T>& in, std::vector<T>& out, hvd_dtype dtype,
                     hvd_reduction reduction = HVD_REDUCTION_SUM) {
  Submission s = named(name, Kind::kAllreduce);
  s.inputs = {tensor(in, dtype)};
  s.outputs = {tensor(out, dtype)};
  s.reduction = reduction;
  return s;
}

}  // namespace hvd::collective::testing

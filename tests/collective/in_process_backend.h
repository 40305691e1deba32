// A transport between threads of one process that keeps the rules of hvd/backend.h and checks that the
// engine does: the same operations in the same order on every rank. Each rank has one thread that hands
// over its messages, in order per source but otherwise in random order, and completes its operations. With a
// device's memory it is a double of a backend for that, too: such operations are done when they are
// submitted, and run later.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "collective/gathering.h"
#include "device_memory.h"
#include "numeric/dtype.h"

namespace hvd::collective::testing {

class InProcessHub;

class InProcessBackend final : public backend::Instance {
 public:
  InProcessBackend(InProcessHub& hub, int32_t rank, backend::HostHandlers handlers);
  ~InProcessBackend() override;

  const backend::Description& description() const override { return description_; }
  Status offers(std::vector<Offer>* ret_offers) override {
    *ret_offers = {{description_.name, "", 0, 0, 0, {}}};
    return {};
  }
  Status connect(uint64_t, int32_t, const std::vector<backend::Member>&, Duration) override { return {}; }
  using Instance::submit;
  Status submit(const hvd_backend_op& op, std::span<const backend::Part> parts) override;
  Status send_message(int32_t destination, std::span<const uint8_t> data) override;
  void abort(uint64_t generation) override;
  void disconnect() override {}
  bool takes_parts() const override;
  std::string detail() const override { return "threads"; }

  /// Device and stream of each operation on device memory, in their order.
  std::vector<std::pair<int32_t, void*>> places();

  backend::Description description_;

 private:
  friend class InProcessHub;
  void serve();

  InProcessHub& hub_;
  const int32_t rank_;
  const backend::HostHandlers handlers_;
  // Under the hub's lock:
  std::vector<std::deque<std::vector<uint8_t>>> inbox_;  // by source
  std::deque<std::pair<hvd_backend_op, Status>> done_;
  bool aborted_ = false, closing_ = false;
  uint64_t last_sequence_ = 0;
  std::vector<std::pair<int32_t, void*>> places_;
  std::mt19937 random_;
  std::condition_variable wake_;
  std::thread thread_;
};

class InProcessHub {
 public:
  explicit InProcessHub(int32_t size, uint64_t generation = 7) : size(size), generation(generation) {}

  /// Operations are held back from the backend's side until released.
  void hold(bool on) {
    std::lock_guard lock(mutex);
    holding = on;
    if (!on) {
      for (auto it = gathering.begin(); it != gathering.end();) it = run_if_complete(it);
    }
  }
  /// Operations that some rank has submitted and that have not run.
  size_t in_flight() {
    std::lock_guard lock(mutex);
    return gathering.size();
  }
  /// Operations of this kind that ran.
  size_t ran(hvd_collective collective) {
    std::lock_guard lock(mutex);
    return operations[collective];
  }
  /// Messages that were sent.
  size_t messages() {
    std::lock_guard lock(mutex);
    return sent;
  }
  /// Messages of a rank come to nobody any more.
  void mute(int32_t rank) {
    std::lock_guard lock(mutex);
    muted.insert(rank);
  }
  /// Completes the operations that `rank` holds with this status.
  void fail_operations(int32_t rank, const Status& status) {
    std::lock_guard lock(mutex);
    drop(rank, status);
  }

  const int32_t size;
  const uint64_t generation;
  hvd::testing::DeviceMemory* device = nullptr;  // one for all ranks; none: host memory only
  bool takes_parts = false;

 private:
  friend class InProcessBackend;
  using Table = std::map<uint64_t, Gathering>;

  void drop(int32_t rank, const Status& status) {
    for (auto& [sequence, g] : gathering) {
      const auto it = g.parts.find(rank);
      if (it == g.parts.end()) continue;
      if (it->second.memory == HVD_MEMORY_HOST) backends.at(rank)->done_.emplace_back(it->second, status);
      g.parts.erase(it);
    }
    backends.at(rank)->wake_.notify_all();
  }

  Table::iterator run_if_complete(Table::iterator it) {
    Gathering& g = it->second;
    if (holding || !g.complete()) return std::next(it);
    ++operations[g.parts.begin()->second.collective];
    g.run();
    for (auto& [rank, op] : g.parts) {
      if (op.memory != HVD_MEMORY_HOST) continue;
      backends.at(rank)->done_.emplace_back(op, Status());
      backends.at(rank)->wake_.notify_all();
    }
    return gathering.erase(it);
  }

  std::mutex mutex;
  std::map<int32_t, InProcessBackend*> backends;
  Table gathering;  // by sequence
  std::set<int32_t> muted;
  bool holding = false;
  size_t sent = 0;
  std::map<hvd_collective, size_t> operations;  // that ran
};

inline InProcessBackend::InProcessBackend(InProcessHub& hub, int32_t rank, backend::HostHandlers handlers)
    : hub_(hub), rank_(rank), handlers_(std::move(handlers)), random_(std::random_device{}()) {
  description_.name = "threads";
  description_.memories = uint64_t{1} << HVD_MEMORY_HOST;
  if (hub.device != nullptr) description_.memories |= uint64_t{1} << HVD_MEMORY_CUDA;
  for (hvd_dtype d = HVD_DTYPE_UINT8; d <= HVD_DTYPE_BOOL; ++d) description_.dtypes |= dtype_bit(d);
  for (hvd_collective c = HVD_COLLECTIVE_BROADCAST; c <= HVD_COLLECTIVE_ALLTOALL; ++c) {
    description_.collectives |= uint64_t{1} << c;
  }
  description_.messages = true;
  inbox_.resize(static_cast<size_t>(hub.size));
  std::lock_guard lock(hub_.mutex);
  hub_.backends[rank] = this;
  thread_ = std::thread([this] { serve(); });
}

inline InProcessBackend::~InProcessBackend() {
  abort(hub_.generation);
  {
    std::lock_guard lock(hub_.mutex);
    closing_ = true;
    hub_.backends.erase(rank_);
    wake_.notify_all();
  }
  thread_.join();
}

inline Status InProcessBackend::submit(const hvd_backend_op& op, std::span<const backend::Part> parts) {
  std::lock_guard lock(hub_.mutex);
  if (aborted_) return Status(HVD_PEER_LOST, "aborted");
  EXPECT_GT(op.sequence, last_sequence_) << "rank " << rank_;
  last_sequence_ = op.sequence;
  if (op.memory == HVD_MEMORY_HOST) {
    hub_.gathering[op.sequence].add(rank_, hub_.size, op, parts);
  } else {
    // As the device sees it. It is done: the host waits for nothing.
    const auto seen = [&](const void* p) -> uint8_t* {
      return p == nullptr ? nullptr : hub_.device->view(p);
    };
    hvd_backend_op own = op;
    std::vector<backend::Part> list(parts.begin(), parts.end());
    if (list.empty()) {
      own.input = seen(op.input);
      own.output = seen(op.output);
    }
    for (backend::Part& part : list) part = {seen(part.input), seen(part.output), part.count};
    hub_.gathering[op.sequence].add(rank_, hub_.size, own, list);
    places_.emplace_back(op.device, op.stream);
    done_.emplace_back(op, Status());
    wake_.notify_all();
  }
  hub_.run_if_complete(hub_.gathering.find(op.sequence));
  return {};
}

inline bool InProcessBackend::takes_parts() const { return hub_.takes_parts; }

inline std::vector<std::pair<int32_t, void*>> InProcessBackend::places() {
  std::lock_guard lock(hub_.mutex);
  return places_;
}

inline Status InProcessBackend::send_message(int32_t destination, std::span<const uint8_t> data) {
  EXPECT_LE(data.size(), size_t{1} << 20);
  EXPECT_NE(destination, rank_);
  std::lock_guard lock(hub_.mutex);
  if (aborted_) return Status(HVD_PEER_LOST, "aborted");
  ++hub_.sent;
  const auto it = hub_.backends.find(destination);
  if (it == hub_.backends.end() || hub_.muted.contains(rank_)) return {};
  it->second->inbox_[static_cast<size_t>(rank_)].emplace_back(data.begin(), data.end());
  it->second->wake_.notify_all();
  return {};
}

inline void InProcessBackend::abort(uint64_t generation) {
  if (generation != hub_.generation) return;
  std::lock_guard lock(hub_.mutex);
  if (aborted_) return;
  aborted_ = true;
  hub_.drop(rank_, Status(HVD_PEER_LOST, "aborted"));
}

inline void InProcessBackend::serve() {
  std::unique_lock lock(hub_.mutex);
  for (;;) {
    std::vector<size_t> sources;
    for (size_t s = 0; s < inbox_.size(); ++s) {
      if (!inbox_[s].empty()) sources.push_back(s);
    }
    if (!done_.empty() && (sources.empty() || random_() % 2 == 0)) {
      const auto [op, status] = done_.front();
      done_.pop_front();
      lock.unlock();
      hvd_error error = HVD_ERROR_INIT;
      status.write_to(&error);
      op.done(op.done_context, status.code, status.ok() ? nullptr : &error);
      lock.lock();
    } else if (!sources.empty()) {
      const size_t source = sources[random_() % sources.size()];
      const std::vector<uint8_t> data = std::move(inbox_[source].front());
      inbox_[source].pop_front();
      lock.unlock();
      handlers_.message(hub_.generation, static_cast<int32_t>(source), data);
      lock.lock();
    } else if (closing_) {
      return;
    } else {
      wake_.wait(lock);
    }
  }
}

}  // namespace hvd::collective::testing

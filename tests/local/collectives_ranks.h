// Ranks as threads of one process, on any number of hosts, for the tests of the collectives over shared
// memory; and a backend between the hosts that computes in the plainest way.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "local/collectives.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvd::local::test {

constexpr int32_t kAll = -1;

/// Where the instances of the plain backend meet.
class Meeting {
 public:
  struct Entry {
    int32_t rank = 0;
    hvd_backend_op op{};
    std::vector<backend::Part> parts;
    std::vector<size_t> counts;
  };

  Status enter(int32_t rank, const hvd_backend_op& op, std::span<const backend::Part> parts) {
    Entry entry{rank, op, {parts.begin(), parts.end()}, {}};
    if (entry.parts.empty()) entry.parts.push_back({op.input, op.output, op.count});
    const auto members = static_cast<size_t>(op.rank_count);
    if (op.counts != nullptr) {
      entry.counts.assign(op.counts,
                          op.counts + members * (op.collective == HVD_COLLECTIVE_ALLTOALL ? 2 : 1));
    }
    std::vector<Entry> entries;
    bool fails = false;
    {
      std::lock_guard lock(mutex_);
      if (aborted_) return {HVD_PEER_LOST, "aborted"};
      auto& waiting = waiting_[op.sequence];
      waiting.push_back(std::move(entry));
      if (waiting.size() < members || held_) return {};
      entries = std::move(waiting);
      waiting_.erase(op.sequence);
      fails = ++operations_ == fail_at_;
    }
    finish(std::move(entries), fails);
    return {};
  }

  void abort() {
    std::map<uint64_t, std::vector<Entry>> waiting;
    {
      std::lock_guard lock(mutex_);
      aborted_ = true;
      waiting.swap(waiting_);
    }
    for (auto& [sequence, entries] : waiting) {
      for (const Entry& entry : entries) complete(entry, HVD_PEER_LOST);
    }
  }

  void hold() { held_ = true; }                       // nothing completes but by abort
  void fail(int operation) { fail_at_ = operation; }  // counted from 1
  size_t waiting() {
    std::lock_guard lock(mutex_);
    return waiting_.size();
  }
  int operations() {
    std::lock_guard lock(mutex_);
    return operations_;
  }

 private:
  static void complete(const Entry& entry, hvd_status code) {
    hvd_error error = HVD_ERROR_INIT;
    error.status = code;
    std::strncpy(error.message, "the plain backend was told to fail", sizeof(error.message) - 1);
    entry.op.done(entry.op.done_context, code, code == HVD_OK ? nullptr : &error);
  }

  static std::vector<uint8_t> gather(const Entry& entry, bool outputs) {
    const size_t element = dtype_size(entry.op.dtype);
    std::vector<uint8_t> bytes;
    for (const backend::Part& part : entry.parts) {
      const auto* data = static_cast<const uint8_t*>(outputs ? part.output : part.input);
      bytes.insert(bytes.end(), data, data + part.count * element);
    }
    return bytes;
  }

  static void scatter(const Entry& entry, const uint8_t* data) {
    const size_t element = dtype_size(entry.op.dtype);
    for (const backend::Part& part : entry.parts) {
      if (part.count > 0) std::memcpy(part.output, data, part.count * element);
      data += part.count * element;
    }
  }

  static void finish(std::vector<Entry> entries, bool fails) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.rank < b.rank; });
    if (!fails) compute(entries);
    for (const Entry& entry : entries) complete(entry, fails ? HVD_INTERNAL : HVD_OK);
  }

  static void compute(const std::vector<Entry>& entries) {
    const hvd_backend_op& op = entries[0].op;
    const size_t element = dtype_size(op.dtype);
    const auto divisor = static_cast<int32_t>(entries.size());
    std::vector<std::vector<uint8_t>> inputs;
    std::vector<const void*> pointers;
    for (const Entry& entry : entries)
      inputs.push_back(gather(entry, op.collective == HVD_COLLECTIVE_BROADCAST));
    for (const auto& input : inputs) pointers.push_back(input.data());
    std::vector<uint8_t> result(inputs[0].size());
    switch (op.collective) {
      case HVD_COLLECTIVE_BROADCAST:
        for (size_t i = 0; i < entries.size(); ++i) {
          if (entries[i].rank == op.root) result = inputs[i];
        }
        for (const Entry& entry : entries) {
          if (entry.rank != op.root) scatter(entry, result.data());  // the root's may be read meanwhile
        }
        return;
      case HVD_COLLECTIVE_ALLREDUCE:
        reduce_many(op.dtype, op.reduction, result.data(), pointers.data(), pointers.size(),
                    result.size() / element, divisor);
        for (const Entry& entry : entries) scatter(entry, result.data());
        return;
      case HVD_COLLECTIVE_REDUCESCATTER: {
        reduce_many(op.dtype, op.reduction, result.data(), pointers.data(), pointers.size(),
                    result.size() / element, divisor);
        const uint8_t* at = result.data();
        for (size_t i = 0; i < entries.size(); ++i) {
          const size_t bytes = entries[i].counts[i] * element;
          if (bytes > 0) std::memcpy(entries[i].op.output, at, bytes);
          at += bytes;
        }
        return;
      }
      case HVD_COLLECTIVE_ALLGATHER:
        result.clear();
        for (const auto& input : inputs) result.insert(result.end(), input.begin(), input.end());
        for (const Entry& entry : entries) {
          if (!result.empty()) std::memcpy(entry.op.output, result.data(), result.size());
        }
        return;
      case HVD_COLLECTIVE_ALLTOALL: {
        std::vector<size_t> read(entries.size());
        for (const Entry& to : entries) {
          auto* out = static_cast<uint8_t*>(to.op.output);
          const auto position = static_cast<size_t>(&to - entries.data());
          for (size_t from = 0; from < entries.size(); ++from) {
            const size_t bytes = entries[from].counts[position] * element;
            EXPECT_EQ(entries[from].counts[position], to.counts[entries.size() + from]);
            if (bytes > 0) std::memcpy(out, inputs[from].data() + read[from], bytes);
            read[from] += bytes;
            out += bytes;
          }
        }
        return;
      }
      default: return;
    }
  }

  std::mutex mutex_;
  std::map<uint64_t, std::vector<Entry>> waiting_;
  bool aborted_ = false;
  std::atomic<bool> held_{false};
  int operations_ = 0;
  std::atomic<int> fail_at_{0};
};

class PlainInstance final : public backend::Instance {
 public:
  PlainInstance(Meeting& meeting, int32_t rank) : meeting_(meeting), rank_(rank) {}
  const backend::Description& description() const override { return description_; }
  Status offers(std::vector<Offer>*) override { return {}; }
  Status connect(uint64_t, int32_t, const std::vector<backend::Member>&, Duration) override { return {}; }
  Status submit(const hvd_backend_op& op, std::span<const backend::Part> parts) override {
    return meeting_.enter(rank_, op, parts);
  }
  Status send_message(int32_t, std::span<const uint8_t>) override { return {}; }
  void abort(uint64_t) override { meeting_.abort(); }
  void disconnect() override {}
  std::string detail() const override { return ""; }

 private:
  Meeting& meeting_;
  const int32_t rank_;
  backend::Description description_;
};

/// One operation of one rank.
struct Call {
  hvd_backend_op op{};
  std::vector<backend::Part> parts;  // empty: the op's own
  std::vector<int32_t> ranks;        // empty: all
  std::vector<size_t> counts;
};

/// hosts: by rank.
class Ranks {
 public:
  explicit Ranks(std::vector<int32_t> hosts) : host_of_(std::move(hosts)) {
    hosts_.group_of.resize(host_of_.size());
    std::map<int32_t, int32_t> seen;
    for (size_t rank = 0; rank < host_of_.size(); ++rank) {
      const auto [at, fresh] = seen.emplace(host_of_[rank], static_cast<int32_t>(hosts_.groups.size()));
      if (fresh) hosts_.groups.emplace_back();
      hosts_.group_of[rank] = at->second;
      hosts_.groups[static_cast<size_t>(at->second)].push_back(static_cast<int32_t>(rank));
    }
    std::vector<std::shared_ptr<Box>> boxes;
    for (size_t rank = 0; rank < host_of_.size(); ++rank) {
      void* memory = mmap(nullptr, sizeof(Box), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      EXPECT_NE(memory, MAP_FAILED);
      boxes.emplace_back(static_cast<Box*>(memory), [](Box* box) { munmap(box, sizeof(Box)); });
    }
    for (int32_t rank = 0; rank < size(); ++rank) {
      const auto& members = hosts_.groups[static_cast<size_t>(hosts_.group_of[static_cast<size_t>(rank)])];
      std::vector<std::shared_ptr<Box>> mine;
      int32_t index = 0;
      for (int32_t member : members) {
        if (member == rank) index = static_cast<int32_t>(mine.size());
        mine.push_back(boxes[static_cast<size_t>(member)]);
      }
      groups_.push_back(std::make_unique<HostGroup>(mine, members, index));
      inner_.push_back(std::make_unique<PlainInstance>(meeting, rank));
    }
  }

  int32_t size() const { return static_cast<int32_t>(host_of_.size()); }
  HostGroup& group(int32_t rank) { return *groups_[static_cast<size_t>(rank)]; }

  /// The call as the executor of rank makes it; the sequence is the call's business.
  Status run(int32_t rank, Call& call) {
    std::vector<int32_t> ranks = call.ranks;
    if (ranks.empty()) {
      for (int32_t r = 0; r < size(); ++r) ranks.push_back(r);
    }
    call.op.ranks = ranks.data();
    call.op.rank_count = static_cast<int32_t>(ranks.size());
    call.op.counts = call.counts.empty() ? nullptr : call.counts.data();
    const backend::Part own{call.op.input, call.op.output, call.op.count};
    const std::span<const backend::Part> parts =
        call.parts.empty() ? std::span(&own, 1) : std::span<const backend::Part>(call.parts);
    InnerOps inner(hosts_.groups.size() > 1 ? inner_[static_cast<size_t>(rank)].get() : nullptr, group(rank),
                   call.op.sequence);
    Task task = run_collective(group(rank), hosts_, call.op, parts, ranks, inner);
    for (bool done = false; !done;) {
      done = group(rank).carry_on(task, leave == Duration::max() ? Time::max() : now() + leave);
      if (!done) std::thread([&] { done = group(rank).carry_on(task, now() + leave); }).join();
    }
    Status status = task.outcome();
    if (!status.ok()) give_up();  // as the engine does when an operation fails
    return status;
  }

  /// Each rank in a thread of its own.
  void each(const std::function<void(int32_t rank)>& body) {
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < size(); ++rank) threads.emplace_back([&body, rank] { body(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  void give_up() {
    for (const auto& group : groups_) group->abort();
    meeting.abort();
  }

  Meeting meeting;
  Duration leave = Duration::max();  // after so long another thread goes on

 private:
  const std::vector<int32_t> host_of_;
  Hosts hosts_;
  std::vector<std::unique_ptr<HostGroup>> groups_;
  std::vector<std::unique_ptr<PlainInstance>> inner_;
};

/// Elements of any dtype, as numbers.
inline void encode(hvd_dtype dtype, void* data, size_t index, double value) {
  const auto put = [&](auto typed) {
    std::memcpy(static_cast<uint8_t*>(data) + index * sizeof(typed), &typed, sizeof(typed));
  };
  switch (dtype) {
    case HVD_DTYPE_UINT8: return put(static_cast<uint8_t>(value));
    case HVD_DTYPE_INT8: return put(static_cast<int8_t>(value));
    case HVD_DTYPE_UINT16: return put(static_cast<uint16_t>(value));
    case HVD_DTYPE_INT16: return put(static_cast<int16_t>(value));
    case HVD_DTYPE_UINT32: return put(static_cast<uint32_t>(value));
    case HVD_DTYPE_INT32: return put(static_cast<int32_t>(value));
    case HVD_DTYPE_UINT64: return put(static_cast<uint64_t>(value));
    case HVD_DTYPE_INT64: return put(static_cast<int64_t>(value));
    case HVD_DTYPE_FLOAT32: return put(static_cast<float>(value));
    case HVD_DTYPE_FLOAT64: return put(value);
    case HVD_DTYPE_BOOL: return put(static_cast<uint8_t>(value != 0));
    default: {
      const auto wide = static_cast<float>(value);
      narrow(dtype, static_cast<uint16_t*>(data) + index, &wide, 1);
    }
  }
}

inline double decode(hvd_dtype dtype, const void* data, size_t index) {
  const auto get = [&](auto typed) {
    std::memcpy(&typed, static_cast<const uint8_t*>(data) + index * sizeof(typed), sizeof(typed));
    return static_cast<double>(typed);
  };
  switch (dtype) {
    case HVD_DTYPE_UINT8:
    case HVD_DTYPE_BOOL: return get(uint8_t{});
    case HVD_DTYPE_INT8: return get(int8_t{});
    case HVD_DTYPE_UINT16: return get(uint16_t{});
    case HVD_DTYPE_INT16: return get(int16_t{});
    case HVD_DTYPE_UINT32: return get(uint32_t{});
    case HVD_DTYPE_INT32: return get(int32_t{});
    case HVD_DTYPE_UINT64: return get(uint64_t{});
    case HVD_DTYPE_INT64: return get(int64_t{});
    case HVD_DTYPE_FLOAT32: return get(float{});
    case HVD_DTYPE_FLOAT64: return get(double{});
    default: {
      float wide = 0;
      widen(dtype, &wide, static_cast<const uint16_t*>(data) + index, 1);
      return static_cast<double>(wide);
    }
  }
}

/// A small whole number that tells rank, place and operation apart.
inline double value(int32_t rank, size_t index, uint64_t salt) {
  return static_cast<double>((static_cast<uint64_t>(rank) * 5 + index * 7 + index / 251 + salt * 3) % 4);
}

inline std::vector<uint8_t> values(hvd_dtype dtype, size_t count, int32_t rank, uint64_t salt) {
  std::vector<uint8_t> data(count * dtype_size(dtype));
  for (size_t i = 0; i < count; ++i) encode(dtype, data.data(), i, value(rank, i, salt));
  return data;
}

/// What the reduction of all those ranks' values is.
inline double reduced(hvd_dtype dtype, hvd_reduction reduction, const std::vector<int32_t>& ranks,
                      size_t index, uint64_t salt) {
  const bool boolean = dtype == HVD_DTYPE_BOOL;
  double result = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    double v = value(ranks[i], index, salt);
    if (boolean) v = v != 0 ? 1 : 0;
    if (i == 0) {
      result = v;
    } else if (reduction == HVD_REDUCTION_MIN) {
      result = std::min(result, v);
    } else if (reduction == HVD_REDUCTION_MAX) {
      result = std::max(result, v);
    } else if (reduction == HVD_REDUCTION_PRODUCT) {
      result *= v;
    } else {
      result = boolean ? std::max(result, v) : result + v;
    }
  }
  return result;
}

}  // namespace hvd::local::test

// Doubles of backends, for tests of what stands before them: they note what is asked of them, and complete
// operations at once or at their abort.
#pragma once

#include <algorithm>

#include "modules/cluster.h"
#include "numeric/dtype.h"

namespace hvd::selection::test {

using namespace backend::test;

/// What happened to a double, in order; of all ranks that write into it.
class Diary {
 public:
  void note(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    changed_.notify_all();
  }
  std::vector<std::string> lines() {
    const std::lock_guard lock(mutex_);
    return lines_;
  }
  /// Lines since the last call.
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }
  bool comes(const std::string& line) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kSoon,
                             [&] { return std::find(lines_.begin(), lines_.end(), line) != lines_.end(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

inline constexpr uint64_t kHost = uint64_t{1} << HVD_MEMORY_HOST, kDevice = uint64_t{1} << HVD_MEMORY_CUDA;

class BackendDouble final : public backend::Instance {
 public:
  BackendDouble(const std::string& name, uint64_t memories, std::shared_ptr<Diary> diary)
      : diary_(std::move(diary)) {
    description_.name = name;
    description_.version = "double";
    description_.memories = memories;
    for (hvd_dtype d = HVD_DTYPE_UINT8; d <= HVD_DTYPE_BOOL; ++d) description_.dtypes |= dtype_bit(d);
    for (hvd_collective c = HVD_COLLECTIVE_BROADCAST; c <= HVD_COLLECTIVE_ALLTOALL; ++c) {
      description_.collectives |= uint64_t{1} << c;
    }
    description_.messages = (memories & kHost) != 0;
  }

  const backend::Description& description() const override { return description_; }
  Status offers(std::vector<Offer>* ret_offers) override {
    if (!no_address.ok()) return no_address;
    const std::string text = description_.name + "'s address";
    const backend::Description& d = description_;
    *ret_offers = {{d.name, "", d.memories, d.dtypes, d.collectives, {text.begin(), text.end()}}};
    return {};
  }
  Status connect(uint64_t generation, int32_t rank, const std::vector<backend::Member>& members,
                 Duration timeout) override {
    std::string line = description_.name + " connect " + std::to_string(generation);
    for (const backend::Member& member : members) {
      const Offer* const offer = find_offer(member, description_.name);
      const std::string text =
          offer != nullptr ? std::string(offer->address.begin(), offer->address.end()) : "none";
      if (text != description_.name + "'s address") line += " with an address that is not its own";
    }
    {
      const std::lock_guard lock(mutex_);
      rank_ = rank;
      down_ = false;
      last_timeout = timeout;
    }
    diary_->note(line);
    if (!connect_waits) return connect_gives;
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, timeout, [&] { return down_; })) return {HVD_TIMEOUT, "nobody came"};
    return {HVD_PEER_LOST, "given up"};
  }
  using backend::Instance::submit;
  Status submit(const hvd_backend_op& op, std::span<const backend::Part>) override {
    diary_->note(description_.name + " op " + std::to_string(op.sequence));
    {
      const std::lock_guard lock(mutex_);
      if (down_) return {HVD_PEER_LOST, "given up"};
      if (holds) {
        held_.push_back(op);
        return {};
      }
    }
    op.done(op.done_context, HVD_OK, nullptr);
    return {};
  }
  Status send_message(int32_t destination, std::span<const uint8_t> data) override {
    diary_->note(description_.name + " message to " + std::to_string(destination) + " of " +
                 std::to_string(data.size()));
    return {};
  }
  void progress(const std::atomic<bool>&, Time) override { diary_->note(description_.name + " progress"); }
  Status host_alloc(hvd_memory, size_t size, void** ret_memory) override {
    diary_->note(description_.name + " alloc " + std::to_string(size));
    *ret_memory = this;
    return {};
  }
  void host_free(hvd_memory, void* data) override {
    EXPECT_EQ(data, this);
    diary_->note(description_.name + " free");
  }
  Status copy(hvd_memory, int32_t device, void*, bool to_device, std::span<const hvd_backend_copy> copies,
              void** ret_ticket) override {
    diary_->note(description_.name + (to_device ? " copies to " : " copies from ") + std::to_string(device) +
                 ": " + std::to_string(copies.size()));
    *ret_ticket = this;
    return {};
  }
  Status copy_wait(hvd_memory, void* ticket, Duration) override {
    EXPECT_EQ(ticket, this);
    diary_->note(description_.name + " copied");
    return {};
  }
  void abort(uint64_t generation) override {
    std::vector<hvd_backend_op> held;
    {
      const std::lock_guard lock(mutex_);
      down_ = true;
      held.swap(held_);
      changed_.notify_all();
    }
    diary_->note(description_.name + " abort " + std::to_string(generation));
    for (const hvd_backend_op& op : held) op.done(op.done_context, HVD_PEER_LOST, nullptr);
  }
  void disconnect() override { diary_->note(description_.name + " disconnect"); }
  std::string detail() const override { return "a double"; }

  backend::Description description_;
  Status no_address;           // what offers gives instead of one
  bool connect_waits = false;  // until abort
  Status connect_gives;
  bool holds = false;  // operations wait for abort
  Duration last_timeout{0};

 private:
  const std::shared_ptr<Diary> diary_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<hvd_backend_op> held_;
  bool down_ = false;
  int32_t rank_ = -1;
};

}  // namespace hvd::selection::test

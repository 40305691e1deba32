// A backend instance that copies between the host and a device that does not exist, by one stream with a
// thread of its own, with faults on demand.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "backend/backend.h"
#include "device_memory.h"

namespace hvd::state {

class DeviceDouble final : public backend::Instance {
 public:
  DeviceDouble() {
    description_.name = "device double";
    description_.memories = uint64_t{1} << HVD_MEMORY_HOST | uint64_t{1} << HVD_MEMORY_CUDA;
    description_.dtypes = description_.collectives = ~uint64_t{0};
    thread_ = std::thread([this] { work(); });
  }
  ~DeviceDouble() override {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
      held_ = false;
      changed_.notify_all();
    }
    thread_.join();
    EXPECT_TRUE(tickets_.empty()) << "somebody did not wait for its copies";
    for (void* memory : pinned_) std::free(memory);
  }

  // ---- What tests do with it --------------------------------------------------------------------

  testing::DeviceMemory memory;
  void* stream() { return &stream_; }
  /// What the stream has been given waits until it is let go.
  void hold(bool on) {
    std::lock_guard lock(mutex_);
    held_ = on;
    changed_.notify_all();
  }
  /// Runs on the stream, in order with the copies.
  void launch(std::function<void()> kernel) { post(std::move(kernel)); }
  /// Waits until the stream has done what it was given.
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return queue_.empty() && !running_; });
  }
  size_t pinned() {
    std::lock_guard lock(mutex_);
    return pinned_.size();
  }
  /// They are the double's to free, as they are a backend's that was closed.
  void forget_pinned() {
    std::lock_guard lock(mutex_);
    for (void* memory : pinned_) std::free(memory);
    pinned_.clear();
  }
  size_t calls() {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  /// Of them those that the stream does not wait for.
  size_t asides() {
    std::lock_guard lock(mutex_);
    return asides_;
  }
  // Which call of copy (0: the first from now on) fails at once, or later on the device; which host_alloc
  // fails.
  void fail_start(int index) { set(&fail_start_, index); }
  void fail_later(int index) { set(&fail_later_, index); }
  void fail_alloc(int index) { set(&fail_alloc_, index); }
  /// Which call of copy_wait has no memory to say what became of the copy.
  void starve_wait(int index) { set(&starve_wait_, index); }

  // ---- Instance ---------------------------------------------------------------------------------

  const backend::Description& description() const override { return description_; }
  Status offers(std::vector<Offer>*) override { return {}; }
  Status connect(uint64_t, int32_t, const std::vector<backend::Member>&, Duration) override { return {}; }
  using Instance::submit;
  Status submit(const hvd_backend_op&, std::span<const backend::Part>) override {
    return {HVD_UNSUPPORTED, "the double only copies"};
  }
  Status send_message(int32_t, std::span<const uint8_t>) override { return {HVD_UNSUPPORTED, ""}; }
  void abort(uint64_t) override {}
  void disconnect() override {}
  std::string detail() const override { return ""; }

  Status host_alloc(hvd_memory kind, size_t size, void** ret_memory) override {
    EXPECT_EQ(kind, HVD_MEMORY_CUDA);
    std::lock_guard lock(mutex_);
    if (fail_alloc_-- == 0) return {HVD_INTERNAL, "the double has no pinned memory"};
    *ret_memory = std::malloc(size);
    pinned_.insert(*ret_memory);
    return {};
  }
  void host_free(hvd_memory, void* data) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(pinned_.erase(data), 1U);
    std::free(data);
  }
  Status copy(hvd_memory kind, int32_t device, void* stream, bool to_device,
              std::span<const hvd_backend_copy> copies, void** ret_ticket) override {
    EXPECT_EQ(kind, HVD_MEMORY_CUDA);
    EXPECT_EQ(device, 3);
    EXPECT_EQ(stream, &stream_);
    int* ticket = nullptr;
    bool fails = false;
    {
      std::lock_guard lock(mutex_);
      ++calls_;
      if (fail_start_-- == 0) return {HVD_INTERNAL, "the double can't start the copy"};
      fails = fail_later_-- == 0;
      ticket = new int(0);
      tickets_[ticket];
    }
    post([this, ticket, to_device, fails, list = std::vector(copies.begin(), copies.end())] {
      for (const hvd_backend_copy& c : list) {
        if (fails) break;
        if (to_device) {
          std::memcpy(memory.view(c.target), c.source, c.size);
        } else {
          std::memcpy(c.target, memory.view(c.source), c.size);
        }
      }
      std::lock_guard lock(mutex_);
      tickets_[ticket] = {true, fails ? Status(HVD_INTERNAL, "the double lost the copy") : Status()};
      changed_.notify_all();
    });
    *ret_ticket = ticket;
    return {};
  }
  Status copy_aside(hvd_memory kind, int32_t device, void* stream, std::span<const hvd_backend_copy> copies,
                    void** ret_ticket) override {
    {
      std::lock_guard lock(mutex_);
      ++asides_;
    }
    return copy(kind, device, stream, false, copies, ret_ticket);
  }
  Status copy_wait(hvd_memory, void* ticket, Duration timeout) override {
    std::unique_lock lock(mutex_);
    auto* const key = static_cast<int*>(ticket);
    if (!changed_.wait_for(lock, timeout, [&] { return tickets_.at(key).done; }))
      return {HVD_TIMEOUT, "it runs"};
    const Status status = tickets_.at(key).status;
    tickets_.erase(key);
    delete key;
    if (starve_wait_-- == 0) throw std::bad_alloc();
    return status;
  }

 private:
  struct Copied {
    bool done = false;
    Status status;
  };
  void set(int* what, int index) {
    std::lock_guard lock(mutex_);
    *what = index;
  }
  void post(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    changed_.notify_all();
  }
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ending_ || (!held_ && !queue_.empty()); });
      if (queue_.empty()) return;
      const auto next = std::move(queue_.front());
      queue_.pop_front();
      running_ = true;
      lock.unlock();
      next();
      lock.lock();
      running_ = false;
      changed_.notify_all();
    }
  }

  backend::Description description_;
  char stream_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::map<int*, Copied> tickets_;
  std::set<void*> pinned_;
  bool held_ = false, ending_ = false, running_ = false;
  int fail_start_ = -1, fail_later_ = -1, fail_alloc_ = -1, starve_wait_ = -1;
  size_t calls_ = 0, asides_ = 0;
  std::thread thread_;
};

}  // namespace hvd::state

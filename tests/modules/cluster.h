// Ranks as threads of one process, each with an instance of the real module, for the tests of the backends.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "backend/backend.h"
#include "backend/loader.h"
#include "patience.h"

namespace hvd::backend::test {

inline const Duration kSoon = hvd::test::patient(std::chrono::seconds(30));  // a deadline, never a duration

/// What one worker's backend says to the core.
class Inbox {
 public:
  struct Message {
    uint64_t generation;
    int32_t source;
    std::vector<uint8_t> data;
  };
  struct Loss {
    uint64_t generation;
    int32_t peer;
    std::string text;
  };

  HostHandlers handlers() {
    HostHandlers handlers;
    handlers.message = [this](uint64_t generation, int32_t source, std::span<const uint8_t> data) {
      std::lock_guard lock(mutex_);
      messages_.push_back({generation, source, {data.begin(), data.end()}});
      changed_.notify_all();
    };
    handlers.failure = [this](uint64_t generation, int32_t peer, const std::string& text) {
      std::function<void(const Loss&)> hook;
      const Loss loss{generation, peer, text};
      {
        std::lock_guard lock(mutex_);
        losses_.push_back(loss);
        hook = on_failure;
      }
      changed_.notify_all();
      if (hook) hook(loss);
    };
    return handlers;
  }

  Message next_message() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kSoon, [&] { return !messages_.empty(); })) {
      ADD_FAILURE() << "no message came";
      return {};
    }
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

  bool has_message() {
    std::lock_guard lock(mutex_);
    return !messages_.empty();
  }

  Loss wait_failure() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kSoon, [&] { return !losses_.empty(); })) {
      ADD_FAILURE() << "no failure was reported";
      return {0, -2, ""};
    }
    return losses_.front();
  }

  std::vector<Loss> losses() {
    std::lock_guard lock(mutex_);
    return losses_;
  }

  std::function<void(const Loss&)> on_failure;  // set before the instance opens

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
  std::vector<Loss> losses_;
};

// The module alone: the ranks of these tests share a host, and its links are what is tested.
inline Status open_module(const std::string& name,
                          const std::vector<std::pair<std::string, std::string>>& module_options,
                          HostHandlers handlers, std::unique_ptr<Instance>* ret_instance,
                          LoggerPtr logger = nullptr) {
  const Options options;
  std::shared_ptr<Module> module;
  Status status = find_module(options, name, &module);
  if (!status.ok()) return status;
  return open_instance(std::move(module), module_options, std::move(handlers),
                       logger == nullptr ? options.logger : std::move(logger), ret_instance);
}

/// The module that these tests are run with, each once for every one of host memory over the kit's
/// connections.
inline std::string module_under_test() {
  const char* const name = std::getenv("HVD_TEST_MODULE");
  return name != nullptr ? name : "tcp";
}

/// The address that a peer needs, as the module gives it.
inline Status address_of(Instance& instance, std::vector<uint8_t>* ret_address) {
  std::vector<Offer> offers;
  Status status = instance.offers(&offers);
  if (status.ok()) *ret_address = std::move(offers.at(0).address);
  return status;
}

/// A member with this address of the backend that `instance` is.
inline Member member_at(uint64_t worker, const std::string& host, const Instance& instance,
                        std::vector<uint8_t> address) {
  const Description& d = instance.description();
  return {worker, host, {{d.name, "", d.memories, d.dtypes, d.collectives, std::move(address)}}};
}

/// A worker: an inbox, and an instance of the module on loopback.
struct Worker {
  explicit Worker(std::vector<std::pair<std::string, std::string>> module_options = {{"interface",
                                                                                      "127.0.0.1"}},
                  const std::string& name = module_under_test()) {
    const Status status = open_module(name, module_options, inbox.handlers(), &instance);
    EXPECT_TRUE(status.ok()) << status.message;
  }
  std::vector<Offer> offers() {
    std::vector<Offer> offers;
    const Status status = instance->offers(&offers);
    EXPECT_TRUE(status.ok()) << status.message;
    return offers;
  }
  Inbox inbox;
  std::unique_ptr<Instance> instance;
};

using Workers = std::vector<std::unique_ptr<Worker>>;

inline Workers make_workers(int size,
                            const std::vector<std::pair<std::string, std::string>>& module_options = {
                                {"interface", "127.0.0.1"}}) {
  Workers workers;
  for (int i = 0; i < size; ++i) workers.push_back(std::make_unique<Worker>(module_options));
  return workers;
}

inline std::vector<Member> members_of(const Workers& workers) {
  std::vector<Member> members;
  for (size_t i = 0; i < workers.size(); ++i) members.push_back({i + 1, "localhost", workers[i]->offers()});
  return members;
}

/// Runs function(rank) on a thread per rank and joins them.
inline void on_all(int size, const std::function<void(int)>& function) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(function, rank);
  for (std::thread& thread : threads) thread.join();
}

inline void connect_all(const Workers& workers, uint64_t generation) {
  const std::vector<Member> members = members_of(workers);
  on_all(static_cast<int>(workers.size()), [&](int rank) {
    const Status status =
        workers[static_cast<size_t>(rank)]->instance->connect(generation, rank, members, kSoon);
    EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status.message;
  });
}

/// One op under way.
class Pending {
 public:
  static void done(void* context, hvd_status code, const hvd_error* error) {
    auto* self = static_cast<Pending*>(context);
    Status status;
    if (code != HVD_OK) status = error != nullptr ? Status::from(code, *error) : Status(code, "");
    std::lock_guard lock(self->mutex_);
    EXPECT_FALSE(self->status_.has_value()) << "done was called twice";
    self->status_ = status;
    self->changed_.notify_all();
  }

  Status wait(Duration deadline = kSoon) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, deadline, [&] { return status_.has_value(); }))
      return {HVD_TIMEOUT, "the test's deadline"};
    return *status_;
  }

  hvd_backend_op op(hvd_collective collective, uint64_t sequence) {
    hvd_backend_op op{};
    op.struct_size = sizeof(op);
    op.collective = collective;
    op.sequence = sequence;
    op.done = done;
    op.done_context = this;
    return op;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Status> status_;
};

/// Submits and waits.
inline Status run(Instance& instance, hvd_backend_op op, Pending& pending) {
  if (Status status = instance.submit(op); !status.ok()) return status;
  return pending.wait();
}

}  // namespace hvd::backend::test

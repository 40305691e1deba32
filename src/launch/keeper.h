// The driver's end of the program that keeps it (hvdrun's first process): what the next driver needs if this
// one dies is kept there, and workers whose driver died are its children, so that it tells how they end.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/loop.h"
#include "launch/send_queue.h"

namespace hvd::store {
struct Message;
}

namespace hvd::launch {

/// What was kept under one name. Whoever takes the descriptors owns them.
struct Kept {
  std::string text;
  std::vector<int> descriptors;
};

/// A worker of an earlier driver, which runs or has ended meanwhile.
struct InheritedWorker {
  uint64_t worker = 0;
  int32_t pid = -1;
  std::string host;
  int32_t slot = 0;
  int out = -1, err = -1;              // of its pipes
  std::optional<int32_t> exit_status;  // as hvd_driver_worker_exited counts
};

class Keeper {
 public:
  /// Reads what an earlier driver left, from a socket that it owns from here on. Throws
  /// Error(HVD_UNAVAILABLE).
  Keeper(int socket, LoggerPtr logger);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// How many drivers there were before this one.
  int32_t drivers_before() const { return before_; }
  /// Takes what was kept under the name, if anything; it stays kept.
  std::optional<Kept> take(const std::string& name);
  std::vector<InheritedWorker> take_workers();
  /// The programs that start agents, one a host; worker and slot are 0.
  std::vector<InheritedWorker> take_agents();
  /// How the process that the name stands for has ended, if it has.
  std::optional<int32_t> ended(const std::string& name) const;

  /// The descriptors stay the caller's. Neither waits for the keeper, which may be stopped. From one thread:
  /// the loop's, once it is watched.
  void keep(const std::string& name, const std::string& text, const std::vector<int>& descriptors);
  void drop(const std::string& name);

  /// Of a worker; its text is "<process> <slot> <host>", its descriptors are the pipes of stdout and stderr.
  static std::string name_of(uint64_t worker);
  /// Of the program that has started an agent there; text and descriptors as a worker's.
  static std::string name_of_agent(const std::string& host);

  /// Everything below on the loop's thread. Calls what expects the ends of processes that are the keeper's
  /// children.
  void watch(Loop& loop);
  void stop_watching();
  void expect(const std::string& name, std::function<void(int32_t exit_status)> exited);
  void expect_no_more(const std::string& name) { expected_.erase(name); }

 private:
  struct Watch;
  bool sent(const store::Message& message);
  std::vector<InheritedWorker> take_processes(std::string_view prefix);
  const int socket_;
  const LoggerPtr logger_;
  int32_t before_ = 0;
  std::map<std::string, Kept> kept_;
  std::map<std::string, int32_t> ended_;
  std::map<std::string, std::function<void(int32_t)>> expected_;
  std::shared_ptr<Watch> watch_;
  SendQueue queue_;
  std::set<std::string> told_;  // names of what the keeper has
};

}  // namespace hvd::launch

// A generation of host memory over the kit's connections: links, lanes, and a thread for each lane that runs
// its collectives. It is connected once, and ends once: in peace (leave) or not (abort), and then teardown,
// off the critical path.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "hvd/backend.hpp"
#include "modules/kit/collectives.h"
#include "modules/kit/lane.h"
#include "modules/kit/links.h"
#include "modules/kit/task.h"

namespace hvdkit {

struct HostConfig {
  std::string ip;
  uint64_t segment_bytes = uint64_t{1} << 20;
  Encrypt encrypt = Encrypt::kAuto;
  bool checksum = false;

  /// From interface, route, segment_bytes, encrypt and checksum. Throws Failure that names the option.
  static HostConfig of(const Options& options);
  std::string text() const;  // for people
};

class HostGeneration {
 public:
  /// Runs the task on its lane; throws Failure. run_collective, or the like over a library's own algorithms.
  using Run = void (*)(Party& party, const Task& task);

  /// module: its name, for errors; it must outlive this.
  HostGeneration(const char* module, Run run, const HostConfig& config, const hvd_backend_host& host);
  ~HostGeneration();

  /// Where the links listen, and what must be the same on all ranks: how payload is cut.
  std::vector<uint8_t> address() const;
  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Takes the place that the group gives. Before connect.
  void assign(const hvd_backend_group& group);
  void connect(const hvd_backend_group& group);

  /// `done` follows unless this throws.
  void submit(Task task);
  void send(int destination, const void* data, size_t size);

  void leave() { links_.leave(); }
  void abort();     // any thread, at once; every task completes with HVD_PEER_LOST
  void teardown();  // after leave or abort: ends the threads, frees the sockets

 private:
  // A thread, and what is to run on its lane in this order.
  struct Executor {
    std::unique_ptr<Lane> lane;
    std::deque<Task> tasks;
    std::condition_variable queued;  // tasks or stopping_
    std::thread thread;              // from the lane's first task on
  };

  Executor& executor_of(const Task& task);
  void execute(Executor& executor);
  void perform(Lane& lane, const Task& task, bool aborted) noexcept;
  void outcome(Lane& lane, const Task& task, bool aborted, hvd_error* error);
  void report(int peer, const char* text) noexcept;
  void abort_lanes();

  const char* const module_;
  const Run run_;
  const HostConfig config_;
  const hvd_backend_host host_;
  uint64_t number_ = 0;
  int rank_ = 0, size_ = 0;
  uint64_t segment_bytes_ = 0;
  std::atomic<bool> reported_{false};
  hvdkit::Links links_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool connecting_ = false, connected_ = false, aborted_ = false, stopping_ = false;
  std::deque<Executor> executors_;  // one a lane
};

}  // namespace hvdkit

// What one generation has: links, Gloo's pairs and the threads that run its collectives. It is connected
// once, and ends once: in peace (leave) or not (abort), and then teardown, off the critical path.
#pragma once

#include <deque>
#include <memory>

#include "modules/gloo/transport.h"
#include "modules/kit/links.h"
#include "modules/kit/task.h"

namespace hvdgloo {

using hvdkit::Task;

constexpr const char* kName = "gloo";

struct Config {
  std::string ip;
  uint64_t segment_bytes = uint64_t{1} << 20;
};

class Generation {
 public:
  Generation(const Config& config, const hvd_backend_host& host);
  ~Generation();

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
  void abort();     // any thread, within 50 ms; every task completes with HVD_PEER_LOST
  void teardown();  // after leave or abort: ends the threads, frees the sockets

 private:
  void start_executor();  // under mutex_
  void execute();         // an executor's thread
  void run(Task& task);
  void complete(const Task& task, const Failure* failure);
  void report(int peer, const std::string& text);

  const Config config_;
  const hvd_backend_host host_;
  uint64_t number_ = 0;
  int rank_ = 0, size_ = 0;
  uint64_t segment_bytes_ = 0;
  std::atomic<bool> reported_{false};
  hvdkit::Links links_;
  std::unique_ptr<Transport> transport_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool connecting_ = false, connected_ = false, aborted_ = false, stopping_ = false;
  std::deque<Task> tasks_;
  std::condition_variable queued_;  // tasks_ or stopping_
  // Several, so that an op's first and last messages travel while another one's data do. They take the tasks in
  // order: of all ops that are under way the oldest has been begun on every rank, so that it comes to its end.
  std::vector<std::thread> executors_;
  size_t idle_ = 0;  // of them
};

}  // namespace hvdgloo

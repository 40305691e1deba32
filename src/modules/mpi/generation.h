// What one generation has: links to its peers, a communicator of its own, and the engine that runs its collectives.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "modules/kit/links.h"
#include "modules/kit/task.h"
#include "modules/mpi/engine.h"
#include "modules/mpi/join.h"

namespace hvdmpi {

using hvdkit::Task;

struct Config {
  std::string ip;         // of the links
  std::string interface;  // the same if it was asked for, else ""
  bool elastic = true;    // payload goes through memory of the module's own
  size_t segment_bytes = size_t{1} << 20;
};

class Generation {
 public:
  Generation(const Config& config, const hvd_backend_host& host);
  ~Generation();

  std::vector<uint8_t> address() const { return mine_.encode(links_.blob().encode()); }
  uint64_t number() const { return number_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  void assign(const hvd_backend_group& group);
  void connect(const hvd_backend_group& group);
  void submit(Task task);
  void send(int destination, const void* data, size_t size);
  void leave();
  void abort();
  void teardown();

 private:
  struct Joining;
  void greet(const hvd_backend_group& group, Joining& joining);
  MPI_Comm form(Joining& joining);
  void tell_of_shield() const;
  void wait(Call& call, const std::string& what, Clock::time_point deadline);
  void perform(Joining& joining, const std::string& what, std::function<void()> body,
               const std::function<void()>& succeeded = {});
  std::string port_of(Joining& joining, int round, int pair, bool accepts);

  const Config config_;
  const hvd_backend_host host_;
  const Address mine_;
  uint64_t number_ = 0;
  int rank_ = 0, size_ = 0;
  std::atomic<bool> reported_{false};
  hvdkit::Links links_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool connecting_ = false, aborted_ = false;
  std::shared_ptr<Engine> engine_;
};

}  // namespace hvdmpi

// What one generation has: links to its peers, a communicator of its own, and the engine that runs its
// collectives.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "modules/kit/links.h"
#include "modules/kit/task.h"
#include "modules/mpi/engine.h"
#include "modules/mpi/group.h"

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
  virtual ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

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

 protected:
  /// Where this rank stands in the joining of a generation.
  struct Joining {
    const hvd_backend_group& group;
    Clock::time_point deadline;
    int steps = 0;  // that every rank has told
    uint64_t segment_bytes = 0;
    std::vector<Team> teams;
  };

  /// Has the teams, of which there are several, join until they are one, which gets *comm. Before, *comm is
  /// that of this rank's team. Only for processes that were started apart.
  virtual void join_teams(Joining& joining, const std::shared_ptr<MPI_Comm>& comm);
  /// Once the members have their communicator.
  virtual void formed() {}

  /// Until the call has ended. It can't say that a peer is lost, the links can.
  void wait(Call& call, const std::string& what, Clock::time_point deadline);
  /// A blocking call of every rank. Ends when all have ended theirs.
  void perform(Joining& joining, const std::string& what, std::function<void()> body,
               const std::function<void()>& succeeded = {});

  const hvd_backend_host& host() const { return host_; }

 private:
  void greet(const hvd_backend_group& group, Joining& joining);
  MPI_Comm form(Joining& joining);

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

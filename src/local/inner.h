// Operations that the executor gives to the backend that joins the hosts, while it works on shared memory.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <span>

#include "backend/backend.h"
#include "local/host_group.h"

namespace hvd::local {

/// One for each operation that is executed; for the executor's thread.
class InnerOps {
 public:
  static constexpr int kNumberBits = 20;

  /// inner: NULL when there is none. sequence: the outer operation's.
  InnerOps(backend::Instance* inner, HostGroup& group, uint64_t sequence)
      : inner_(inner), group_(group), sequence_(sequence) {}
  InnerOps(const InnerOps&) = delete;
  InnerOps& operator=(const InnerOps&) = delete;
  ~InnerOps() { drain(); }

  class Ticket {
   public:
    bool finished() const { return finished_.load(std::memory_order_seq_cst); }
    /// Of one that is finished.
    const Status& outcome() const { return status_; }

   private:
    friend class InnerOps;
    std::atomic<bool> finished_{false};
    Status status_;
    InnerOps* ops_ = nullptr;
  };

  /// Submits; op.sequence, done and done_context are filled in here. number: of this inner operation within
  /// the outer one, below 2^kNumberBits, the same on all ranks that take part in it and growing. Buffers are
  /// borrowed until the ticket is finished; a ticket lives as long as this object.
  Status submit(hvd_backend_op op, std::span<const backend::Part> parts, uint64_t number,
                Ticket** ret_ticket);

  /// Until it is finished: its outcome, or HVD_PEER_LOST after abort (its buffers are still borrowed then:
  /// drain before they go).
  Task wait(const Ticket& ticket);

  /// Whether any operation was given to the inner backend, or refused by it.
  bool used() const { return used_; }

  /// Until all are finished. After abort the inner backend ends what it has by itself, soon.
  void drain();

 private:
  static void done(void* context, hvd_status code, const hvd_error* error);

  backend::Instance* const inner_;
  HostGroup& group_;
  const uint64_t sequence_;
  std::mutex mutex_;  // an outcome is told under it, so that this object does not go meanwhile
  std::condition_variable told_;
  std::deque<Ticket> tickets_;
  bool used_ = false;
};

}  // namespace hvd::local

// Backends as the core sees them: an instance behind hvd/backend.h, found by the loader by name.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/member.h"
#include "base/options.h"
#include "base/status.h"
#include "hvd/backend.h"

namespace hvd::backend {

using hvd::Member;
using hvd::Offer;

/// What the core does with what a backend says. Any thread; see hvd_backend_host.
struct HostHandlers {
  std::function<void(uint64_t generation, int32_t source, std::span<const uint8_t>)> message;
  std::function<void(uint64_t generation, int32_t peer, const std::string& text)> failure;
  std::function<Status(uint64_t generation, const std::string& key, std::span<const uint8_t> value)> kv_set;
  std::function<Status(uint64_t generation, const std::string& key, Duration timeout,
                       std::vector<uint8_t>* value)>
      kv_get;
};

struct Description {
  std::string name, version, path;  // path of the module; "" for the built-in
  uint64_t memories = 0, dtypes = 0, collectives = 0;
  bool messages = false, local = false;
};

/// Which backend serves an operation, and why that one.
struct Choice {
  std::string name, reason;
};

/// One tensor of several that travel as one operation.
struct Part {
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;  // elements
};

class Board;

/// An open instance. The rules of hvd_backend_table hold, in C++ clothes.
class Instance {
 public:
  virtual ~Instance() = default;  // closes
  virtual const Description& description() const = 0;
  /// Whether this collective (but a barrier, of this dtype) on this memory is served in the current
  /// generation: what description() names may be more. The same on every member. Any thread.
  virtual bool supports(hvd_memory memory, hvd_dtype dtype, hvd_collective collective) const;
  /// By whom. HVD_UNSUPPORTED, where supports() says no: why nobody does.
  virtual Status choice(hvd_memory memory, hvd_dtype dtype, hvd_collective collective,
                        Choice* ret_choice) const;
  /// How peers reach this instance in the next generation, and what it can do: a row a backend, first that
  /// for host memory.
  virtual Status offers(std::vector<Offer>* ret_offers) = 0;
  /// By the rows that all members gave, in the order of their ranks.
  virtual Status connect(uint64_t generation, int32_t rank, const std::vector<Member>& members,
                         Duration timeout) = 0;
  /// parts: for broadcast and allreduce, tensors of the op's dtype that are worked on as if they lay one
  /// after the other; op.input, output and count are then unused. Empty: the op's own. The list itself is
  /// borrowed for the call alone.
  virtual Status submit(const hvd_backend_op& op, std::span<const Part> parts) = 0;
  Status submit(const hvd_backend_op& op) { return submit(op, {}); }
  /// The instance that carries messages, of several behind this one: small operations go straight to it, by
  /// the four functions that follow. The same as long as this instance lives.
  virtual Instance& carrier() { return *this; }
  virtual Status send_message(int32_t destination, std::span<const uint8_t> data) = 0;
  /// The calling thread waits for `done` and lends itself to the backend meanwhile: carries messages and
  /// runs operations. Returns when done is true, at the deadline, or earlier when there is no use in it:
  /// the caller then waits in its own way. A backend without need of it returns at once.
  virtual void progress(const std::atomic<bool>& done, Time deadline) {
    static_cast<void>(done);
    static_cast<void>(deadline);
  }
  /// The calling thread will wait in progress for what it submits from now on, and nobody need be woken for
  /// it; false: no more.
  virtual void lends(bool will) { static_cast<void>(will); }
  /// On which all ranks of the current generation meet, if they all share memory; NULL otherwise. Outlives
  /// the generation.
  virtual std::shared_ptr<Board> board() { return nullptr; }
  /// Whether tensors of host memory that travel together are worked on where they lie, however large they
  /// are, in the current generation. The same on every member.
  virtual bool takes_parts() const { return false; }
  /// Copies between host and device memory, as in hvd_backend_table; `memory` is the device's kind. An
  /// instance that serves none gives HVD_UNSUPPORTED. All of them stay usable after abort.
  virtual Status host_alloc(hvd_memory memory, size_t size, void** ret_memory);
  virtual void host_free(hvd_memory memory, void* data) {
    static_cast<void>(memory);
    static_cast<void>(data);
  }
  virtual Status copy(hvd_memory memory, int32_t device, void* stream, bool to_device,
                      std::span<const hvd_backend_copy> copies, void** ret_ticket);
  virtual Status copy_wait(hvd_memory memory, void* ticket, Duration timeout);
  virtual Status copy_aside(hvd_memory memory, int32_t device, void* stream,
                            std::span<const hvd_backend_copy> copies, void** ret_ticket) {
    return copy(memory, device, stream, false, copies, ret_ticket);
  }
  virtual void abort(uint64_t generation) = 0;
  virtual void disconnect() = 0;
  virtual std::string detail() const = 0;
};

}  // namespace hvd::backend

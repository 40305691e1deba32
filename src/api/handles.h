// What the opaque handles of hvd.h are, and how their arguments are checked.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/guard.h"
#include "api/standalone.h"
#include "base/options.h"
#include "elastic/process_set.h"
#include "elastic/run_loop.h"
#include "elastic/worker.h"

struct hvd_options {
  hvd::Options options;
  std::string text;  // what hvd_options_get gave last
};

struct hvd_context {
  hvd::api::StandaloneDriver driver;  // of rank 0 in a job without a driver; outlives the worker
  std::unique_ptr<hvd::elastic::Worker> worker;
  hvd::Duration shutdown_timeout{0};
  std::string backend_name;
  std::atomic<bool> running{false};  // a run loop is open
  std::atomic<hvd_status> last_run{HVD_OK};
  std::atomic<bool> closed{false};
};

struct hvd_state {
  explicit hvd_state(hvd_context& c)
      : context(c), elastic(c.worker->logger(), c.worker->timeline(), c.worker->copies()) {}
  hvd_context& context;
  hvd::elastic::ElasticState elastic;
};

struct hvd_op {
  std::shared_ptr<hvd::collective::Operation> operation;
  hvd::collective::Kind kind{};
  hvd::Duration timeout{0};                      // the longest wait of the operation
  std::vector<hvd_tensor> outputs;               // as the caller gave them
  std::mutex mutex;                              // guards what follows
  std::vector<hvd::collective::Buffer> buffers;  // library's memory, once taken from the operation
  std::vector<bool> taken;
};

struct hvd_process_set {
  hvd_context* const context;  // not owned
  const std::shared_ptr<hvd::elastic::ProcessSet> set;
};

namespace hvd::api {

/// The worker of a context that is open; throws Error(HVD_INVALID) or Error(HVD_CLOSED).
elastic::Worker& open_worker(hvd_context* context);

/// A caller's tensor, checked: struct_size, dtype, dimensions, memory kind.
collective::Tensor tensor_of(const hvd_tensor* tensor, const char* name);

/// A caller's time-out: 0 is `fallback`. Throws Error(HVD_INVALID) if it is negative or too long.
Duration timeout_of(int64_t timeout_ns, Duration fallback);

/// A caller's operation name: 1 to 255 bytes, not beginning with "hvd.".
std::string operation_name(const char* name);

}  // namespace hvd::api

// The opaque handles of hvd.h, and how their arguments are checked. Those of contexts and states are in
// context.h and state_handle.h: they bring the elastic worker, which few units look into.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "api/guard.h"
#include "api/handle.h"
#include "base/options.h"
#include "collective/operation.h"
#include "elastic/process_set.h"
#include "hvd/hvd.h"

namespace hvd::elastic {
class Worker;
}  // namespace hvd::elastic

struct hvd_options {
  hvd::Options options;
  std::string text;  // what hvd_options_get gave last
};

struct hvd_op {
  std::shared_ptr<hvd_context> context;
  std::shared_ptr<hvd::collective::Operation> operation;
  hvd::collective::Kind kind{};
  hvd::Duration timeout{0};                      // the longest wait of the operation
  bool connects = false;                         // it is hvd_connect, and no collective
  std::vector<hvd_tensor> outputs;               // as the caller gave them
  std::mutex mutex;                              // guards what follows
  std::vector<hvd::collective::Buffer> buffers;  // library's memory, once taken from the operation
  std::vector<bool> taken;
};

struct hvd_process_set {
  const std::shared_ptr<hvd_context> context;
  const std::shared_ptr<hvd::elastic::ProcessSet> set;
};

namespace hvd::api {

/// The worker of a context that was not shut down; throws Error(HVD_CLOSED).
elastic::Worker& open_worker(hvd_context& context);
/// The same, of one that has joined a job; otherwise throws Error(HVD_INVALID).
elastic::Worker& connected_worker(hvd_context& context);

/// Stands for the calling thread.
const void* this_thread();

}  // namespace hvd::api

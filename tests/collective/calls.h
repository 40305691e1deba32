// Calls of ranks, for tests that talk to the matcher without an engine.
#pragma once

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "collective/messages.h"

namespace hvd::collective::testing {

/// A request that is still being put together.
struct Call : Signature {
  uint64_t ticket = 0, checks = 0, epoch = 0, word = 0, object_size = 0;
  bool carries = false;
  std::vector<uint8_t> bytes;

  operator Request() const {  // NOLINT(google-explicit-constructor): a test reads better so
    auto signature = std::make_shared<Signature>(*this);
    signature->seal();
    Request request;
    request.call = std::move(signature);
    request.ticket = ticket;
    request.checks = checks;
    request.epoch = epoch;
    request.word = word;
    request.object_size = object_size;
    request.carries = carries;
    request.payload = bytes;
    return request;
  }
};

inline Call call(const std::string& name, Kind kind = Kind::kBarrier) {
  static std::atomic<uint64_t> ticket{0};
  Call c;
  c.ticket = ++ticket;
  c.name = name;
  c.kind = kind;
  c.timeout = seconds(600);
  return c;
}

inline Call allreduce_call(const std::string& name, std::vector<int64_t> shape,
                           hvd_dtype dtype = HVD_DTYPE_FLOAT32, hvd_reduction reduction = HVD_REDUCTION_SUM) {
  Call c = call(name, Kind::kAllreduce);
  c.specs = {{dtype, std::move(shape)}};
  c.reduction = reduction;
  return c;
}

}  // namespace hvd::collective::testing

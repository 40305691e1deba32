// The built-in backend of a worker that is alone: every collective is a copy at most, done within submit.
#include <fmt/format.h>

#include <cstring>
#include <mutex>

#include "backend/module.h"
#include "numeric/dtype.h"

namespace hvd::backend {
namespace {

class SelfInstance final : public Instance {
 public:
  SelfInstance() {
    description_.name = "self";
    description_.version = HVD_VERSION_STRING;
    description_.memories = uint64_t{1} << HVD_MEMORY_HOST;
    for (hvd_dtype dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype)
      description_.dtypes |= dtype_bit(dtype);
    for (hvd_collective c : {HVD_COLLECTIVE_BROADCAST, HVD_COLLECTIVE_ALLREDUCE, HVD_COLLECTIVE_ALLGATHER,
                             HVD_COLLECTIVE_BARRIER, HVD_COLLECTIVE_REDUCESCATTER, HVD_COLLECTIVE_ALLTOALL}) {
      description_.collectives |= uint64_t{1} << c;
    }
    description_.messages = true;
    description_.local = true;
  }

  const Description& description() const override { return description_; }

  Status offers(std::vector<Offer>* ret_offers) override {
    const Description& d = description_;
    *ret_offers = {{d.name, "", d.memories, d.dtypes, d.collectives, {}}};
    return {};
  }

  Status connect(uint64_t generation, int32_t rank, const std::vector<Member>& members, Duration) override {
    if (members.size() != 1 || rank != 0) {
      return error(HVD_INVALID, fmt::format("the backend self serves rank 0 of 1, not rank {} of {}", rank,
                                            members.size()));
    }
    std::lock_guard lock(mutex_);
    connected_ = true;
    generation_ = generation;
    return {};
  }

  using Instance::submit;
  Status submit(const hvd_backend_op& op, std::span<const Part> parts) override {
    {
      std::lock_guard lock(mutex_);
      if (!connected_) return error(HVD_PEER_LOST, "no generation is connected");
    }
    if (op.collective < 0 || op.collective > 63 || (description_.collectives >> op.collective & 1) == 0) {
      return error(HVD_UNSUPPORTED, fmt::format("collective {} is not supported", op.collective));
    }
    if (op.ranks != nullptr && (op.rank_count != 1 || op.ranks[0] != 0)) {
      return error(HVD_INVALID, "the only rank is 0");
    }
    if (op.memory != HVD_MEMORY_HOST) return error(HVD_UNSUPPORTED, "device memory is not supported");
    if (op.collective != HVD_COLLECTIVE_BROADCAST && op.collective != HVD_COLLECTIVE_BARRIER) {
      const Part whole{op.input, op.output, op.count};
      for (const Part& part : parts.empty() ? std::span(&whole, 1) : parts) {
        const size_t bytes = part.count * dtype_size(op.dtype);
        if (bytes > 0 && part.output != part.input) std::memmove(part.output, part.input, bytes);
      }
    }
    op.done(op.done_context, HVD_OK, nullptr);
    return {};
  }

  Status send_message(int32_t destination, std::span<const uint8_t>) override {
    return error(HVD_INVALID,
                 fmt::format("message to rank {}: a worker that is alone has no other", destination));
  }

  void abort(uint64_t generation) override {
    std::lock_guard lock(mutex_);
    if (generation_ == generation) connected_ = false;
  }

  void disconnect() override {
    std::lock_guard lock(mutex_);
    connected_ = false;
  }

  std::string detail() const override { return "alone"; }

 private:
  static Status error(hvd_status code, std::string message) {
    Status status(code, std::move(message));
    status.backend = "self";
    return status;
  }

  Description description_;
  std::mutex mutex_;
  bool connected_ = false;
  uint64_t generation_ = 0;
};

}  // namespace

std::unique_ptr<Instance> make_self_instance() { return std::make_unique<SelfInstance>(); }

}  // namespace hvd::backend

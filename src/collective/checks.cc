#include "collective/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/dtype.h"

namespace hvd::collective {

namespace {

bool is_broadcast(Kind kind) { return kind == Kind::kBroadcast || kind == Kind::kBroadcastObject; }

hvd_collective collective_of(Kind kind) {
  switch (kind) {
    case Kind::kAllreduce: return HVD_COLLECTIVE_ALLREDUCE;
    case Kind::kAllgather: return HVD_COLLECTIVE_ALLGATHER;
    case Kind::kReducescatter: return HVD_COLLECTIVE_REDUCESCATTER;
    case Kind::kAlltoall: return HVD_COLLECTIVE_ALLTOALL;
    case Kind::kBarrier:
    case Kind::kJoin:
    case Kind::kAgree: return 0;  // answered by the matching alone
    default: return HVD_COLLECTIVE_BROADCAST;
  }
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

bool overlap(const Tensor& a, const Tensor& b) {
  const auto a_begin = reinterpret_cast<uintptr_t>(a.data), b_begin = reinterpret_cast<uintptr_t>(b.data);
  return a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

class Check {
 public:
  Check(const Submission& s, int32_t rank, int32_t size, const backend::Description& backend)
      : s_(s), rank_(rank), size_(size), backend_(backend) {}

  Status run() {
    if (s_.name.empty() || s_.name.size() > kMaxName) {
      return Status(HVD_INVALID, fmt::format("{}: name of {} bytes, expected 1 to {}", kind_name(s_.kind),
                                             s_.name.size(), kMaxName));
    }
    if (size_ > 1 && !backend_.messages) {
      return unsupported("carries no messages, so that it can't serve more than one rank");
    }
    if (is_broadcast(s_.kind) && (s_.root < 0 || s_.root >= size_)) {
      return invalid(fmt::format("root is {}, expected 0 to {}", s_.root, size_ - 1));
    }
    if (const auto collective = collective_of(s_.kind);
        collective != 0 && !(backend_.collectives >> collective & 1)) {
      return unsupported(fmt::format("has no {}", kind_name(s_.kind)));
    }
    if (Status status = members(); !status.ok()) return status;
    switch (s_.kind) {
      case Kind::kBroadcastObject: return object();
      case Kind::kBroadcast: return variables();
      case Kind::kAllreduce: return allreduce();
      case Kind::kAllgather: return allgather();
      case Kind::kReducescatter:
      case Kind::kAlltoall:
      case Kind::kJoin: return unsupported("serves no such operation");
      default: return {};
    }
  }

 private:
  Status invalid(const std::string& what) const {
    return Status(HVD_INVALID, fmt::format("{} '{}': {}", kind_name(s_.kind), s_.name, what));
  }
  Status unsupported(const std::string& what) const {
    return Status(HVD_UNSUPPORTED,
                  fmt::format("{} '{}': backend {} {}", kind_name(s_.kind), s_.name, backend_.name, what));
  }

  Status tensor(const Tensor& t, const std::string& what, bool may_be_null = false) const {
    if (dtype_size(t.dtype) == 0) return invalid(fmt::format("{} has the unknown dtype {}", what, t.dtype));
    if (t.shape.size() > HVD_MAX_DIMS) {
      return invalid(
          fmt::format("{} has {} dimensions, expected at most {}", what, t.shape.size(), HVD_MAX_DIMS));
    }
    for (const int64_t extent : t.shape) {
      if (extent < 0) return invalid(fmt::format("{} has the negative shape {}", what, shape_text(t.shape)));
    }
    const int64_t bytes = spec_bytes(t.dtype, t.shape);
    if (bytes < 0 || bytes > std::numeric_limits<ptrdiff_t>::max()) {
      return invalid(fmt::format("{} of shape {} is larger than memory can be", what, shape_text(t.shape)));
    }
    if (t.data == nullptr && bytes > 0 && !may_be_null) {
      return invalid(fmt::format("{} of shape {} has no data (NULL)", what, shape_text(t.shape)));
    }
    if (!(backend_.memories >> HVD_MEMORY_HOST & 1)) return unsupported("does not take host memory");
    if (!(backend_.dtypes & dtype_bit(t.dtype))) {
      return unsupported(fmt::format("does not support {}", dtype_name(t.dtype)));
    }
    return {};
  }

  Status allreduce() const {
    if (s_.inputs.size() != 1 || s_.outputs.size() != 1) return invalid("expected one input and one output");
    if (s_.reduction < HVD_SUM || s_.reduction > HVD_PRODUCT) {
      return invalid(fmt::format("unknown reduction {}", s_.reduction));
    }
    if (Status status = tensor(s_.inputs[0], "input"); !status.ok()) return status;
    if (Status status = tensor(s_.outputs[0], "output"); !status.ok()) return status;
    if (s_.inputs[0].dtype != s_.outputs[0].dtype) {
      return invalid(fmt::format("input is {}, output {}", dtype_name(s_.inputs[0].dtype),
                                 dtype_name(s_.outputs[0].dtype)));
    }
    if (s_.inputs[0].shape != s_.outputs[0].shape) {
      return invalid(fmt::format("input has shape {}, output {}", shape_text(s_.inputs[0].shape),
                                 shape_text(s_.outputs[0].shape)));
    }
    if (s_.inputs[0].data != s_.outputs[0].data && overlap(s_.inputs[0], s_.outputs[0])) {
      return invalid("input and output overlap; they must be the same memory or disjoint");
    }
    if (s_.reduction == HVD_AVERAGE && s_.inputs[0].dtype == HVD_BOOL) {
      return Status(HVD_UNSUPPORTED, fmt::format("allreduce '{}': there is no average of bool", s_.name));
    }
    return {};
  }

  Status allgather() const {
    if (s_.inputs.size() != 1 || s_.outputs.size() > 1) return invalid("expected one input and one output");
    if (Status status = tensor(s_.inputs[0], "input"); !status.ok()) return status;
    if (s_.inputs[0].shape.empty()) return invalid("input is a scalar, expected at least one dimension");
    if (s_.outputs.empty() || s_.outputs[0].data == nullptr) return {};  // the library allocates
    if (Status status = tensor(s_.outputs[0], "output"); !status.ok()) return status;
    if (s_.inputs[0].dtype != s_.outputs[0].dtype) {
      return invalid(fmt::format("input is {}, output {}", dtype_name(s_.inputs[0].dtype),
                                 dtype_name(s_.outputs[0].dtype)));
    }
    if (s_.inputs[0].shape.size() != s_.outputs[0].shape.size() ||
        !std::equal(s_.inputs[0].shape.begin() + 1, s_.inputs[0].shape.end(),
                    s_.outputs[0].shape.begin() + 1)) {
      return invalid(fmt::format("input has shape {}, output {}: they may differ in the first dimension only",
                                 shape_text(s_.inputs[0].shape), shape_text(s_.outputs[0].shape)));
    }
    if (overlap(s_.inputs[0], s_.outputs[0])) return invalid("input and output overlap");
    return {};
  }

  Status variables() const {
    size_t bytes = 0;
    for (size_t i = 0; i < s_.outputs.size(); ++i) {
      if (Status status = tensor(s_.outputs[i], fmt::format("tensor {}", i)); !status.ok()) return status;
      bytes += 2 + 8 * s_.outputs[i].shape.size();
    }
    if (bytes > kMaxSpecBytes) {
      return invalid(
          fmt::format("{} tensors are too many for one operation: their shapes take {} bytes, expected at "
                      "most {}",
                      s_.outputs.size(), bytes, kMaxSpecBytes));
    }
    return {};
  }

  Status members() const {
    const auto& members = s_.members;
    if (members.empty()) return {};
    if (members.front() < 0 || members.back() >= size_ ||
        std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) != members.end()) {
      return invalid(fmt::format("takes ranks {{{}}}, expected ascending ones from 0 to {}",
                                 fmt::join(members, ", "), size_ - 1));
    }
    if (is_broadcast(s_.kind) && !std::binary_search(members.begin(), members.end(), s_.root)) {
      return invalid(fmt::format("root {} is not among its ranks", s_.root));
    }
    if (!std::binary_search(members.begin(), members.end(), rank_)) {
      return invalid(fmt::format("called by rank {}, which is not among its ranks", rank_));
    }
    return {};
  }

  Status object() const {
    if (!(backend_.memories >> HVD_MEMORY_HOST & 1)) return unsupported("does not take host memory");
    return {};
  }

  const Submission& s_;
  const int32_t rank_, size_;
  const backend::Description& backend_;
};

}  // namespace

Status check(const Submission& submission, int32_t rank, int32_t size, const backend::Description& backend) {
  return Check(submission, rank, size, backend).run();
}

Request make_request(const Submission& submission, uint64_t ticket, int32_t rank) {
  Request request;
  request.ticket = ticket;
  request.name = submission.name;
  request.kind = submission.kind;
  request.timeout = std::clamp(submission.timeout, Duration::zero(), kMaxTimeout);
  if (is_broadcast(submission.kind)) request.root = submission.root;
  request.members = submission.members;
  switch (submission.kind) {
    case Kind::kAgree: request.word = submission.word; break;
    case Kind::kAllreduce: request.reduction = submission.reduction; [[fallthrough]];
    case Kind::kAllgather: request.specs = {{submission.inputs[0].dtype, submission.inputs[0].shape}}; break;
    case Kind::kBroadcast:
      request.specs.reserve(submission.outputs.size());
      for (const auto& t : submission.outputs) request.specs.push_back({t.dtype, t.shape});
      break;
    case Kind::kBroadcastObject:
      if (rank != submission.root) break;
      request.object_size = submission.object.size();
      if (submission.object.size() <= kInlineObject) request.object = submission.object;
      break;
    default: break;
  }
  return request;
}

}  // namespace hvd::collective

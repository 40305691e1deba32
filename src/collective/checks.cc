#include "collective/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "numeric/dtype.h"

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
  Check(const Submission& s, int32_t rank, int32_t size, const backend::Instance& instance)
      : s_(s), rank_(rank), size_(size), instance_(instance), backend_(instance.description()) {}

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
    if (on_device()) {
      if (Status status = device(); !status.ok()) return status;
    }
    switch (s_.kind) {
      case Kind::kBroadcastObject: return object();
      case Kind::kBroadcast: return group(s_.outputs, "tensor");
      case Kind::kAllreduce: return allreduce();
      case Kind::kAllgather: return allgather();
      case Kind::kReducescatter: return reducescatter();
      case Kind::kAlltoall: return alltoall();
      case Kind::kJoin: return s_.members.empty() ? Status() : invalid("all ranks join, not a process set");
      case Kind::kBarrier:
      case Kind::kAgree: return {};
    }
    return invalid("unknown kind of operation");
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
    return served(t.memory, t.dtype);
  }

  /// By any backend in use. Broadcasts move bytes.
  Status served(hvd_memory memory, hvd_dtype dtype) const {
    if (is_broadcast(s_.kind)) dtype = HVD_DTYPE_UINT8;
    if (instance_.supports(memory, dtype, collective_of(s_.kind))) return {};
    backend::Choice none;
    Status status = instance_.choice(memory, dtype, collective_of(s_.kind), &none);
    status.message = fmt::format("{} '{}': {}", kind_name(s_.kind), s_.name, status.message);
    return status;
  }

  static bool is_device(const Tensor& t) { return t.memory != HVD_MEMORY_HOST; }
  bool on_device() const {
    return std::any_of(s_.inputs.begin(), s_.inputs.end(), is_device) ||
           std::any_of(s_.outputs.begin(), s_.outputs.end(), is_device);
  }

  static std::string place(const Tensor& t) {
    if (!is_device(t)) return memory_name(t.memory);
    return fmt::format("{} of device {} for stream {}", memory_name(t.memory), t.device, fmt::ptr(t.stream));
  }

  /// All tensors of a call lie in one place, and what the host can't do for them is not asked for.
  Status device() const {
    for (const auto* tensors : {&s_.inputs, &s_.outputs}) {
      for (const Tensor& t : *tensors) {
        if (!is_device(t) || dtype_size(t.dtype) == 0) continue;
        if (Status status = served(t.memory, t.dtype); !status.ok()) return status;
      }
    }
    // Before the place: who leaves an output to the library can't say where it is to be.
    for (const Tensor& out : s_.outputs) {
      const bool empty = std::find(out.shape.begin(), out.shape.end(), 0) != out.shape.end();
      if (out.data == nullptr && !empty) return no_allocation();
    }
    if (s_.kind != Kind::kBroadcast && s_.outputs.empty()) return no_allocation();
    const Tensor& first = s_.inputs.empty() ? s_.outputs[0] : s_.inputs[0];
    const auto same = [&](const std::vector<Tensor>& tensors, const char* what) -> Status {
      for (size_t i = 0; i < tensors.size(); ++i) {
        const Tensor& t = tensors[i];
        if (t.memory == first.memory && t.device == first.device && t.stream == first.stream) continue;
        return invalid(fmt::format("{} is in {}, {} in {}: expected one memory, device and stream",
                                   one_of(s_.inputs.empty() ? "tensor" : "input", 0,
                                          s_.inputs.empty() ? s_.outputs.size() : s_.inputs.size()),
                                   place(first), one_of(what, i, tensors.size()), place(t)));
      }
      return {};
    };
    if (Status status = same(s_.inputs, "input"); !status.ok()) return status;
    if (Status status = same(s_.outputs, s_.inputs.empty() ? "tensor" : "output"); !status.ok())
      return status;
    if (s_.prescale != 1 || s_.postscale != 1) {
      return Status(
          HVD_UNSUPPORTED,
          fmt::format("{} '{}': prescale is {}, postscale {}: expected 1, {} is not scaled by the library",
                      kind_name(s_.kind), s_.name, s_.prescale, s_.postscale, memory_name(first.memory)));
    }
    return {};
  }

  Status no_allocation() const {
    return Status(
        HVD_UNSUPPORTED,
        fmt::format("{} '{}': an output has no data (NULL): expected memory of the caller's, the library "
                    "allocates no device memory",
                    kind_name(s_.kind), s_.name));
  }

  /// "input 3" of several.
  static std::string one_of(const char* what, size_t index, size_t count) {
    return count == 1 ? what : fmt::format("{} {}", what, index);
  }

  Status group(const std::vector<Tensor>& tensors, const char* what) const {
    size_t specs = 0;
    int64_t bytes = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const std::string name = one_of(what, i, tensors.size());
      if (Status status = tensor(tensors[i], name); !status.ok()) return status;
      specs += 2 + 8 * tensors[i].shape.size();
      if (__builtin_add_overflow(bytes, spec_bytes(tensors[i].dtype, tensors[i].shape), &bytes) ||
          bytes > std::numeric_limits<ptrdiff_t>::max() / 2) {
        return invalid("the tensors are larger than memory can be");
      }
    }
    if (specs > kMaxSpecBytes) {
      return invalid(
          fmt::format("{} tensors are too many for one operation: their shapes take {} bytes, expected at "
                      "most {}",
                      tensors.size(), specs, kMaxSpecBytes));
    }
    return {};
  }

  Status reduction() const {
    if (s_.reduction < HVD_REDUCTION_SUM || s_.reduction > HVD_REDUCTION_PRODUCT) {
      return invalid(fmt::format("unknown reduction {}", s_.reduction));
    }
    for (const Tensor& t : s_.inputs) {
      if (s_.reduction == HVD_REDUCTION_AVERAGE && t.dtype == HVD_DTYPE_BOOL) {
        return Status(HVD_UNSUPPORTED,
                      fmt::format("{} '{}': there is no average of bool", kind_name(s_.kind), s_.name));
      }
      if ((s_.prescale != 1 || s_.postscale != 1) && t.dtype == HVD_DTYPE_BOOL) {
        return Status(HVD_UNSUPPORTED,
                      fmt::format("{} '{}': bool can't be scaled", kind_name(s_.kind), s_.name));
      }
    }
    return {};
  }

  /// Inputs and outputs by number.
  Status pairs(bool outputs_needed) const {
    if (s_.inputs.empty()) return invalid("has no input");
    if (s_.outputs.size() != s_.inputs.size() && (outputs_needed || !s_.outputs.empty())) {
      return invalid(fmt::format("{} inputs and {} outputs", s_.inputs.size(), s_.outputs.size()));
    }
    return {};
  }

  Status same_dtype(const Tensor& in, const Tensor& out) const {
    if (in.dtype == out.dtype) return {};
    return invalid(fmt::format("input is {}, output {}", dtype_name(in.dtype), dtype_name(out.dtype)));
  }

  Status allreduce() const {
    if (Status status = pairs(true); !status.ok()) return status;
    if (Status status = reduction(); !status.ok()) return status;
    if (Status status = group(s_.inputs, "input"); !status.ok()) return status;
    if (Status status = group(s_.outputs, "output"); !status.ok()) return status;
    for (size_t i = 0; i < s_.inputs.size(); ++i) {
      const Tensor& in = s_.inputs[i];
      const Tensor& out = s_.outputs[i];
      if (Status status = same_dtype(in, out); !status.ok()) return status;
      if (in.shape != out.shape) {
        return invalid(
            fmt::format("input has shape {}, output {}", shape_text(in.shape), shape_text(out.shape)));
      }
      if (in.data != out.data && overlap(in, out)) {
        return invalid("input and output overlap; they must be the same memory or disjoint");
      }
    }
    return {};
  }

  /// Of operations whose result has another first dimension than what goes in.
  Status rows(const Tensor& in, const Tensor* out) const {
    if (in.shape.empty()) return invalid("input is a scalar, expected at least one dimension");
    if (out == nullptr || (out->data == nullptr && !is_device(*out))) return {};  // the library allocates
    if (Status status = tensor(*out, "output"); !status.ok()) return status;
    if (Status status = same_dtype(in, *out); !status.ok()) return status;
    if (in.shape.size() != out->shape.size() ||
        !std::equal(in.shape.begin() + 1, in.shape.end(), out->shape.begin() + 1)) {
      return invalid(fmt::format("input has shape {}, output {}: they may differ in the first dimension only",
                                 shape_text(in.shape), shape_text(out->shape)));
    }
    if (overlap(in, *out)) return invalid("input and output overlap");
    return {};
  }

  Status allgather() const {
    if (Status status = pairs(false); !status.ok()) return status;
    if (Status status = group(s_.inputs, "input"); !status.ok()) return status;
    for (size_t i = 0; i < s_.inputs.size(); ++i) {
      if (Status status = rows(s_.inputs[i], s_.outputs.empty() ? nullptr : &s_.outputs[i]); !status.ok())
        return status;
    }
    return {};
  }

  Status one_with_splits() const {
    if (Status status = pairs(false); !status.ok()) return status;
    if (s_.inputs.size() != 1) return invalid(fmt::format("{} inputs, expected 1", s_.inputs.size()));
    if (Status status = group(s_.inputs, "input"); !status.ok()) return status;
    if (Status status = rows(s_.inputs[0], s_.outputs.empty() ? nullptr : &s_.outputs[0]); !status.ok())
      return status;
    const auto members = static_cast<int64_t>(s_.members.empty() ? size_t(size_) : s_.members.size());
    const int64_t have = s_.inputs[0].shape[0];
    if (s_.splits.empty()) {
      if (s_.kind == Kind::kReducescatter) return room(have / members + (index() < have % members ? 1 : 0));
      if (have % members == 0) return {};
      return invalid(
          fmt::format("{} rows can't be divided evenly among {} ranks: give splits", have, members));
    }
    if (static_cast<int64_t>(s_.splits.size()) != members) {
      return invalid(fmt::format("{} splits, expected {}, one for each rank", s_.splits.size(), members));
    }
    int64_t sum = 0;
    for (const int64_t split : s_.splits) {
      if (split < 0 || __builtin_add_overflow(sum, split, &sum)) {
        return invalid(fmt::format("splits are {}, expected 0 or more rows each", shape_text(s_.splits)));
      }
    }
    if (sum == have) {
      return s_.kind == Kind::kReducescatter ? room(s_.splits[static_cast<size_t>(index())]) : Status();
    }
    return invalid(fmt::format("splits add up to {} rows, input has {}", sum, have));
  }

  /// This rank's place among those that take part.
  int64_t index() const {
    const auto& members = s_.members;
    if (members.empty()) return rank_;
    return std::lower_bound(members.begin(), members.end(), rank_) - members.begin();
  }

  /// Reducescatter on a device: rows that do not fit can't go elsewhere. On the host that is a matter of this rank.
  Status room(int64_t rows) const {
    if (s_.outputs.empty() || !is_device(s_.outputs[0]) || s_.outputs[0].shape[0] >= rows) return {};
    return invalid(fmt::format("output has room for {} rows, {} are needed", s_.outputs[0].shape[0], rows));
  }

  Status reducescatter() const {
    if (Status status = reduction(); !status.ok()) return status;
    return one_with_splits();
  }

  Status alltoall() const { return one_with_splits(); }

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

  Status object() const { return served(HVD_MEMORY_HOST, HVD_DTYPE_UINT8); }

  const Submission& s_;
  const int32_t rank_, size_;
  const backend::Instance& instance_;
  const backend::Description& backend_;
};

}  // namespace

Status check(const Submission& submission, int32_t rank, int32_t size, const backend::Instance& backend) {
  return Check(submission, rank, size, backend).run();
}

void complete_submission(Submission* submission, int32_t size) {
  Submission& s = *submission;
  const bool splits = s.kind == Kind::kReducescatter || s.kind == Kind::kAlltoall;
  if (s.kind == Kind::kAllgather || splits) s.outputs.resize(s.inputs.size());
  if (!splits || !s.splits.empty()) return;
  const auto members = static_cast<int64_t>(s.members.empty() ? size_t(size) : s.members.size());
  const int64_t rows = s.inputs[0].shape[0];
  for (int64_t m = 0; m < members; ++m) s.splits.push_back(rows / members + (m < rows % members ? 1 : 0));
}

}  // namespace hvd::collective

// The rules that several collectives have in common; each one's own stand in kinds/.
#include "collective/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "numeric/dtype.h"

namespace hvd::collective {

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

bool overlap(const Tensor& a, const Tensor& b) {
  const auto a_begin = reinterpret_cast<uintptr_t>(a.data), b_begin = reinterpret_cast<uintptr_t>(b.data);
  return a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

namespace {

std::string place(const Tensor& t) {
  if (!is_device(t)) return memory_name(t.memory);
  return fmt::format("{} of device {} for stream {}", memory_name(t.memory), t.device, fmt::ptr(t.stream));
}

/// "input 3" of several.
std::string one_of(const char* what, size_t index, size_t count) {
  return count == 1 ? what : fmt::format("{} {}", what, index);
}

}  // namespace

Status Validation::run() const {
  if (Status status = name(); !status.ok()) return status;
  if (size_ > 1 && !backend_.messages) {
    return unsupported("carries no messages, so that it can't serve more than one rank");
  }
  if (row_.rooted && (s_.root < 0 || s_.root >= size_)) {
    return invalid(fmt::format("root is {}, expected 0 to {}", s_.root, size_ - 1));
  }
  if (row_.collective != 0 && !(backend_.collectives >> row_.collective & 1)) {
    return unsupported(fmt::format("has no {}", row_.name));
  }
  if (Status status = membership(); !status.ok()) return status;
  if (on_device()) {
    if (Status status = device(); !status.ok()) return status;
  }
  return row_.validate == nullptr ? Status() : row_.validate(*this);
}

Status Validation::name() const {
  if (s_.name.empty() || s_.name.size() > kMaxName) {
    return Status(HVD_INVALID,
                  fmt::format("{}: name of {} bytes, expected 1 to {}", row_.name, s_.name.size(), kMaxName));
  }
  if (const size_t bad = find_bad_utf8(s_.name); bad != std::string::npos) {
    return Status(HVD_INVALID,
                  fmt::format("{} '{}': byte {} of the name is {:#04x}, expected UTF-8", row_.name,
                              printable(s_.name), bad, static_cast<uint8_t>(s_.name[bad])));
  }
  return {};
}

Status Validation::invalid(const std::string& what) const {
  return Status(HVD_INVALID, fmt::format("{} '{}': {}", row_.name, s_.name, what));
}

Status Validation::unsupported(const std::string& what) const {
  return Status(HVD_UNSUPPORTED,
                fmt::format("{} '{}': backend {} {}", row_.name, s_.name, backend_.name, what));
}

Status Validation::tensor(const Tensor& t, const char* kind, size_t index, size_t count) const {
  const auto what = [&] { return one_of(kind, index, count); };  // made for an error alone
  if (dtype_size(t.dtype) == 0) return invalid(fmt::format("{} has the unknown dtype {}", what(), t.dtype));
  for (const int64_t extent : t.shape) {
    if (extent < 0) return invalid(fmt::format("{} has the negative shape {}", what(), shape_text(t.shape)));
  }
  const int64_t bytes = spec_bytes(t.dtype, t.shape);
  if (bytes < 0 || bytes > std::numeric_limits<ptrdiff_t>::max()) {
    return invalid(fmt::format("{} of shape {} is larger than memory can be", what(), shape_text(t.shape)));
  }
  if (t.data == nullptr && bytes > 0) {
    return invalid(fmt::format("{} of shape {} has no data (NULL)", what(), shape_text(t.shape)));
  }
  return {};
}

Status Validation::served(hvd_memory memory, hvd_dtype dtype) const {
  if (row_.bytes) dtype = HVD_DTYPE_UINT8;
  if (instance_.supports(memory, dtype, row_.collective)) return {};
  backend::Choice none;
  Status status = instance_.choice(memory, dtype, row_.collective, &none);
  status.message = fmt::format("{} '{}': {}", row_.name, s_.name, status.message);
  return status;
}

bool Validation::on_device() const {
  return std::any_of(s_.inputs.begin(), s_.inputs.end(), is_device) ||
         std::any_of(s_.outputs.begin(), s_.outputs.end(), is_device);
}

Status Validation::device() const {
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
  if (!row_.in_place && s_.outputs.empty()) return no_allocation();
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
  if (Status status = same(s_.outputs, s_.inputs.empty() ? "tensor" : "output"); !status.ok()) return status;
  if (s_.prescale != 1 || s_.postscale != 1) {
    return Status(
        HVD_UNSUPPORTED,
        fmt::format("{} '{}': prescale is {}, postscale {}: expected 1, {} is not scaled by the library",
                    row_.name, s_.name, s_.prescale, s_.postscale, memory_name(first.memory)));
  }
  return {};
}

Status Validation::no_allocation() const {
  return Status(
      HVD_UNSUPPORTED,
      fmt::format("{} '{}': an output has no data (NULL): expected memory of the caller's, the library "
                  "allocates no device memory",
                  row_.name, s_.name));
}

Status Validation::group(const std::vector<Tensor>& tensors, const char* what) const {
  size_t specs = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    if (Status status = tensor(t, what, i, tensors.size()); !status.ok()) return status;
    if (i == 0 || t.memory != tensors[i - 1].memory || t.dtype != tensors[i - 1].dtype) {
      if (Status status = served(t.memory, t.dtype); !status.ok()) return status;
    }
    specs += 2 + 8 * t.shape.size();
    if (__builtin_add_overflow(bytes, spec_bytes(t.dtype, t.shape), &bytes) ||
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

Status Validation::reduction() const {
  if (s_.reduction < HVD_REDUCTION_SUM || s_.reduction > HVD_REDUCTION_PRODUCT) {
    return invalid(fmt::format("unknown reduction {}", s_.reduction));
  }
  for (const Tensor& t : s_.inputs) {
    if (s_.reduction == HVD_REDUCTION_AVERAGE && t.dtype == HVD_DTYPE_BOOL) {
      return Status(HVD_UNSUPPORTED, fmt::format("{} '{}': there is no average of bool", row_.name, s_.name));
    }
    if ((s_.prescale != 1 || s_.postscale != 1) && t.dtype == HVD_DTYPE_BOOL) {
      return Status(HVD_UNSUPPORTED, fmt::format("{} '{}': bool can't be scaled", row_.name, s_.name));
    }
  }
  return {};
}

Status Validation::pairs(bool outputs_needed) const {
  if (s_.inputs.empty()) return invalid("has no input");
  if (s_.outputs.size() != s_.inputs.size() && (outputs_needed || !s_.outputs.empty())) {
    return invalid(fmt::format("{} inputs and {} outputs", s_.inputs.size(), s_.outputs.size()));
  }
  return {};
}

Status Validation::same_dtype(const Tensor& in, const Tensor& out) const {
  if (in.dtype == out.dtype) return {};
  return invalid(fmt::format("input is {}, output {}", dtype_name(in.dtype), dtype_name(out.dtype)));
}

Status Validation::same_shape(const Tensor& in, const Tensor& out) const {
  if (in.shape == out.shape) return {};
  return invalid(fmt::format("input has shape {}, output {}", shape_text(in.shape), shape_text(out.shape)));
}

Status Validation::rows(const Tensor& in, const Tensor* out) const {
  if (in.shape.empty()) return invalid("input is a scalar, expected at least one dimension");
  if (out == nullptr || (out->data == nullptr && !is_device(*out))) return {};  // the library allocates
  if (Status status = tensor(*out, "output", 0, 1); !status.ok()) return status;
  if (Status status = served(out->memory, out->dtype); !status.ok()) return status;
  if (Status status = same_dtype(in, *out); !status.ok()) return status;
  if (in.shape.size() != out->shape.size() ||
      !std::equal(in.shape.begin() + 1, in.shape.end(), out->shape.begin() + 1)) {
    return invalid(fmt::format("input has shape {}, output {}: they may differ in the first dimension only",
                               shape_text(in.shape), shape_text(out->shape)));
  }
  if (overlap(in, *out)) return invalid("input and output overlap");
  return {};
}

Status Validation::one_with_splits() const {
  if (Status status = pairs(false); !status.ok()) return status;
  if (s_.inputs.size() != 1) return invalid(fmt::format("{} inputs, expected 1", s_.inputs.size()));
  if (Status status = group(s_.inputs, "input"); !status.ok()) return status;
  if (Status status = rows(s_.inputs[0], s_.outputs.empty() ? nullptr : &s_.outputs[0]); !status.ok())
    return status;
  if (s_.splits.empty()) return {};
  if (static_cast<int64_t>(s_.splits.size()) != members()) {
    return invalid(fmt::format("{} splits, expected {}, one for each rank", s_.splits.size(), members()));
  }
  int64_t sum = 0;
  for (const int64_t split : s_.splits) {
    if (split < 0 || __builtin_add_overflow(sum, split, &sum)) {
      return invalid(fmt::format("splits are {}, expected 0 or more rows each", shape_text(s_.splits)));
    }
  }
  if (sum == s_.inputs[0].shape[0]) return {};
  return invalid(fmt::format("splits add up to {} rows, input has {}", sum, s_.inputs[0].shape[0]));
}

int64_t Validation::index() const {
  const auto& members = s_.members;
  if (members.empty()) return rank_;
  return std::lower_bound(members.begin(), members.end(), rank_) - members.begin();
}

Status Validation::room(int64_t rows) const {
  if (s_.outputs.empty() || !is_device(s_.outputs[0]) || s_.outputs[0].shape[0] >= rows) return {};
  return invalid(fmt::format("output has room for {} rows, {} are needed", s_.outputs[0].shape[0], rows));
}

Status Validation::membership() const {
  const auto& members = s_.members;
  if (members.empty()) return {};
  if (members.front() < 0 || members.back() >= size_ ||
      std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) != members.end()) {
    return invalid(fmt::format("takes ranks {{{}}}, expected ascending ones from 0 to {}",
                               fmt::join(members, ", "), size_ - 1));
  }
  if (row_.rooted && !std::binary_search(members.begin(), members.end(), s_.root)) {
    return invalid(fmt::format("root {} is not among its ranks", s_.root));
  }
  if (!std::binary_search(members.begin(), members.end(), rank_)) {
    return invalid(fmt::format("called by rank {}, which is not among its ranks", rank_));
  }
  return {};
}

const char* inspect_splits(const Signature& call, size_t members) {
  if (call.specs.size() != 1 || call.specs[0].shape.empty()) return "request without its tensor";
  if (call.splits.size() != members) return "request with splits for another number of ranks";
  int64_t sum = 0;
  for (const int64_t rows : call.splits) {
    if (rows < 0 || __builtin_add_overflow(sum, rows, &sum)) return "request with impossible splits";
  }
  return sum == call.specs[0].shape[0] ? nullptr : "request whose splits are not its rows";
}

Status check(const Submission& submission, int32_t rank, int32_t size, const backend::Instance& backend) {
  return Validation(submission, rank, size, backend).run();
}

void complete_submission(Submission* submission, int32_t size) {
  Submission& s = *submission;
  const Row& row = row_of(s.kind);
  if (row.place != nullptr && !row.object) s.outputs.resize(s.inputs.size());
  if (!row.splits || !s.splits.empty()) return;
  const auto members = static_cast<int64_t>(s.members.empty() ? size_t(size) : s.members.size());
  const int64_t rows = s.inputs[0].shape[0];
  for (int64_t m = 0; m < members; ++m) s.splits.push_back(rows / members + (m < rows % members ? 1 : 0));
}

}  // namespace hvd::collective

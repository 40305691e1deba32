// Builds the backend's operations and their buffers.
#include "collective/plan.h"

#include <cstring>

#include "numeric/dtype.h"

namespace hvd::collective {

namespace {

constexpr size_t kSmallTensor = 64 << 10;  // of a group: smaller ones travel together
constexpr size_t kTogether = 4 << 20;      // bytes, so that packing and sending overlap

hvd_dtype dtype_of(const Row& row, const Tensor& tensor) {
  return row.bytes ? hvd_dtype(HVD_DTYPE_UINT8) : tensor.dtype;
}

}  // namespace

Plan::Step& Plan::add(const Operation& of, hvd_collective collective, hvd_dtype dtype) {
  const Submission& s = of.submission;
  Step& step = steps_.emplace_back();
  step.op.struct_size = sizeof step.op;
  step.op.collective = collective;
  step.op.dtype = dtype;
  step.op.reduction = s.reduction;
  step.op.root = s.root;
  const auto& tensors = s.inputs.empty() ? s.outputs : s.inputs;
  if (!tensors.empty()) {
    step.op.memory = tensors[0].memory;
    step.op.device = tensors[0].device;
    step.op.stream = tensors[0].stream;
  }
  return step;
}

uint8_t* Plan::scratch(size_t bytes) {
  Buffer memory = allocate(bytes);
  if (memory == nullptr) return nullptr;
  return scratch_.emplace_back(std::move(memory)).get();
}

Status plan_parts(Plan& plan, Answer& answer) {
  const Submission& s = answer.submission();
  const Row& row = answer.row();
  std::vector<backend::Part> parts;
  row.parts(answer.op, &parts);
  if (plan.alone()) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const size_t bytes = s.outputs[i].bytes();
      if (bytes > 0 && parts[i].input != parts[i].output)
        std::memmove(parts[i].output, parts[i].input, bytes);
    }
    return {};
  }
  Plan::Step* open = nullptr;
  size_t open_bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].count == 0) continue;
    const size_t bytes = s.outputs[i].bytes();
    const hvd_dtype dtype = dtype_of(row, s.outputs[i]);
    const bool packed = !plan.takes_parts() || s.outputs[i].memory != HVD_MEMORY_HOST;
    if (packed && bytes >= kSmallTensor) {
      plan.add(answer.op, row.collective, dtype).parts.push_back(parts[i]);
      open = nullptr;  // its address may have changed
      continue;
    }
    if (open == nullptr || open->op.dtype != dtype || (packed && open_bytes + bytes > kTogether)) {
      open = &plan.add(answer.op, row.collective, dtype);
      open_bytes = 0;
    }
    open->parts.push_back(parts[i]);
    open_bytes += bytes;
  }
  return {};
}

void plan_together(Plan& plan, std::span<const std::shared_ptr<Operation>> ops) {
  const Submission& first = ops[0]->submission;
  const Row& row = row_of(first.kind);
  auto& step =
      plan.add(*ops[0], row.collective, row.bytes ? hvd_dtype(HVD_DTYPE_UINT8) : first.outputs[0].dtype);
  std::vector<backend::Part> parts;
  for (const auto& op : ops) {
    parts.clear();
    row.parts(*op, &parts);
    for (const backend::Part& part : parts) {
      if (part.count > 0) step.parts.push_back(part);
    }
  }
}

void add_counts(std::vector<size_t>* counts, const Tensor& tensor, std::span<const int64_t> rows) {
  const auto row = static_cast<size_t>(spec_bytes(tensor.dtype, std::span(tensor.shape).subspan(1))) /
                   dtype_size(tensor.dtype);
  for (const int64_t n : rows) counts->push_back(static_cast<size_t>(n) * row);
}

}  // namespace hvd::collective

// Checks an outcome against its operation and finds room for the results.
#include "collective/answer.h"

#include <fmt/format.h>

#include <cstring>

#include "collective/mismatch.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvd::collective {

Shape with_rows(const Tensor& input, std::span<const int64_t> rows) {
  Shape shape = input.shape;
  shape[0] = 0;
  for (const int64_t n : rows) {
    if (__builtin_add_overflow(shape[0], n, &shape[0])) return Shape{-1};
  }
  return shape;
}

bool Answer::alone() const {
  if (outcome.sequence != 0 || outcome.carries || count() != 1) return false;
  if (op.call->on_device() || row().in_place) return false;
  const auto& inputs = submission().inputs;
  return std::any_of(inputs.begin(), inputs.end(), [](const Tensor& t) { return t.bytes() > 0; });
}

const char* Answer::misfit() const {
  const auto& members = op.call->members;
  const auto& ranks = outcome.participants;
  if (!ranks.empty()) {
    if (!std::binary_search(ranks.begin(), ranks.end(), rank)) return "this rank takes no part in it";
    if (!members.empty() && !std::includes(members.begin(), members.end(), ranks.begin(), ranks.end()))
      return "its participants are no members";
    if (row().needs_all) return "it needs all of its ranks";
    if (row().rooted && !std::binary_search(ranks.begin(), ranks.end(), submission().root))
      return "its root takes no part in it";
  }
  const bool device = op.call->on_device();
  if (device && outcome.carries) return "it brings data for device memory";
  if (row().plan == nullptr && outcome.sequence != 0) return "it needs no backend";
  const Fit fit = row().misfit == nullptr ? Fit{} : row().misfit(*this);
  if (fit.why != nullptr) return fit.why;
  const bool here = outcome.sequence == 0 && (count() > 1 || device);  // the data has to be in the outcome
  if (outcome.sequence != 0 || (fit.bytes && !here && !outcome.carries)) return nullptr;
  if (!fit.bytes) return outcome.payload.empty() ? nullptr : "it brings data that nobody needs";
  return (outcome.carries || row().object) && outcome.payload.size() == *fit.bytes ? nullptr
                                                                                   : "its data is missing";
}

Status Answer::settle() {
  const Submission& s = submission();
  op.result_word = outcome.word;
  if (row().place != nullptr) {
    if (Status status = row().place(*this, false); !status.ok() || !op.verdict.ok()) {
      return status.ok() ? op.verdict : status;
    }
  }
  if (outcome.payload.empty()) return {};
  size_t at = 0;
  for (const Tensor& t : row().place != nullptr ? op.results : s.outputs) {
    at = payload_aligned(at);
    const size_t bytes = t.bytes();
    if (bytes == 0) continue;
    if (at + bytes > outcome.payload.size()) return Status(HVD_INTERNAL, "an outcome that was cut short");
    std::memcpy(t.data, outcome.payload.data() + at, bytes);
    if (row().reduces && s.postscale != 1) {
      scale(t.dtype, t.data, static_cast<size_t>(t.elements()), s.postscale);
    }
    at += bytes;
  }
  return {};
}

void begin_results(Answer& answer) {
  answer.op.results.resize(answer.submission().inputs.size());
  answer.op.buffers.resize(answer.submission().inputs.size());
}

Status place_result(Answer& answer, size_t index, const Shape& shape, bool discard) {
  Operation& op = answer.op;
  const Submission& s = op.submission;
  const char* const name = answer.row().name;
  const Tensor& output = s.outputs[index];
  Tensor& result = op.results[index];
  const Tensor& input = s.inputs[index];
  result = {output.data, input.dtype, shape, input.memory, input.device, input.stream};
  const size_t bytes = result.bytes();
  const bool device = result.memory != HVD_MEMORY_HOST;
  const bool given = output.data != nullptr || device;
  const bool room = given && output.shape[0] >= result.shape[0];
  if (device && !room) {  // rank 0 was told the room
    return Status(HVD_INTERNAL, fmt::format("{} '{}': output has room for {} rows, {} came", name, s.name,
                                            output.shape[0], result.shape[0]));
  }
  if (given && !room) {
    if (op.verdict.ok()) {
      op.verdict =
          Status(HVD_INVALID,
                 fmt::format("{} '{}': output has room for {} rows on {}, {} are needed", name, s.name,
                             output.shape[0], describe_ranks({answer.rank}, answer.hosts), result.shape[0]));
    }
    if (!discard) return {};
  }
  if (room || bytes == 0) return {};
  auto& memory = op.buffers[index];
  memory.data = allocate(bytes);
  if (memory.data == nullptr) {
    return Status(HVD_INTERNAL, fmt::format("{} '{}': no memory for {} bytes", name, s.name, bytes));
  }
  memory.bytes = bytes;
  result.data = memory.data.get();
  return {};
}

}  // namespace hvd::collective

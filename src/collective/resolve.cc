// Operations of which one rank has a part of its own: from what the caller says to what the engine runs.
#include <fmt/format.h>

#include <algorithm>

#include "base/status.h"
#include "collective/kinds/kind.h"
#include "collective/signature.h"
#include "collective/submission.h"

namespace hvd::collective {

namespace {

/// A pair of ranks is a set of its own, by direction, so that the others need not call and any name serves.
void pair_up(Submission* s, int32_t rank, int32_t size) {
  const int32_t other = s->root == rank ? s->peer : s->root;
  const char* const verb = s->root == rank ? "send" : "receive";
  if (other < 0 || other >= size || other == rank) {
    throw Error(HVD_INVALID,
                fmt::format("{} '{}': the other rank is {}: expected one from 0 to {} that is not this one",
                            verb, s->name, other, size - 1));
  }
  for (const int32_t member : {rank, other}) {
    if (s->members.empty() || std::binary_search(s->members.begin(), s->members.end(), member)) continue;
    throw Error(HVD_INVALID, fmt::format("{} '{}': rank {} is no member of process set '{}'", verb, s->name,
                                         member, s->set));
  }
  s->set = fmt::format("hvd.{}>{}{}{}", s->root, s->root == rank ? other : rank, s->set.empty() ? "" : ".",
                       s->set);
  s->members = {std::min(rank, other), std::max(rank, other)};
}

}  // namespace

void resolve(Submission* submission, int32_t rank, int32_t size) {
  Submission& s = *submission;
  if (s.kind == Kind::kSend) return pair_up(&s, rank, size);
  if (s.kind != Kind::kReduce && s.kind != Kind::kGather && s.kind != Kind::kScatter) return;
  if (s.root < 0 || s.root >= size) {
    throw Error(HVD_INVALID, fmt::format("{} '{}': root is {}, expected 0 to {}", kind_name(s.kind), s.name,
                                         s.root, size - 1));
  }
  if (s.kind == Kind::kReduce) {
    if (rank == s.root) return;
    s.outputs.assign(1, s.inputs[0]);
    const int64_t bytes = spec_bytes(s.inputs[0].dtype, s.inputs[0].shape);
    if (bytes <= 0) return;                                    // nothing, or refused as such
    s.scratch.reset(new uint8_t[static_cast<size_t>(bytes)]);  // not filled: it is written over
    s.outputs[0].data = s.scratch.get();
    return;
  }
  const auto count = static_cast<int64_t>(s.members.empty() ? size_t(size) : s.members.size());
  if (s.inputs[0].shape.empty()) return;  // refused as such
  const int64_t rows = s.inputs[0].shape[0];
  const auto root = s.members.empty()
                        ? int64_t{s.root}
                        : std::lower_bound(s.members.begin(), s.members.end(), s.root) - s.members.begin();
  if (s.kind == Kind::kGather) {
    s.splits.assign(static_cast<size_t>(count), 0);
    if (root < count) s.splits[static_cast<size_t>(root)] = rows;
    return;
  }
  if (rank == s.root && !s.splits.empty()) return;
  s.splits.clear();
  for (int64_t i = 0; i < count; ++i) {
    s.splits.push_back(rank == s.root ? rows / count + (i < rows % count ? 1 : 0) : 0);
  }
}

}  // namespace hvd::collective

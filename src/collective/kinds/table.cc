// The table of collectives, in the order of Kind.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "collective/kinds/kind.h"

namespace hvd::collective {

// Each is defined in the file of its name.
extern const Row kBroadcastRow;        // broadcast.cc
extern const Row kAllreduceRow;        // allreduce.cc
extern const Row kAllgatherRow;        // allgather.cc
extern const Row kReducescatterRow;    // reducescatter.cc
extern const Row kAlltoallRow;         // alltoall.cc
extern const Row kBarrierRow;          // barrier.cc
extern const Row kBroadcastObjectRow;  // broadcast_object.cc
extern const Row kJoinRow;             // join.cc
extern const Row kAgreeRow;            // agree.cc
extern const Row kSendRow;             // send.cc
extern const Row kReduceRow;           // reduce.cc
extern const Row kGatherRow;           // gather.cc
extern const Row kScatterRow;          // scatter.cc

namespace {

constexpr const Row* kTable[] = {
    &kBroadcastRow, &kAllreduceRow,       &kAllgatherRow, &kReducescatterRow, &kAlltoallRow,
    &kBarrierRow,   &kBroadcastObjectRow, &kJoinRow,      &kAgreeRow,         &kSendRow,
    &kReduceRow,    &kGatherRow,          &kScatterRow,
};

}  // namespace

const Row* find_row(uint8_t kind) { return kind < std::size(kTable) ? kTable[kind] : nullptr; }

const Row& row_of(Kind kind) { return *kTable[static_cast<size_t>(kind)]; }

std::optional<Asked> find_asked(hvd_collective collective) {
  for (const Row* row : kTable) {
    for (const Form& form : row->forms) {
      if (form.collective == collective) return Asked{*row, form};
    }
  }
  return {};
}

Asked asked_by(hvd_collective collective) {
  if (const auto asked = find_asked(collective)) return *asked;
  hvd_collective last = HVD_COLLECTIVE_BROADCAST;
  for (const Row* row : kTable) {
    for (const Form& form : row->forms) last = std::max(last, form.collective);
  }
  throw Error(HVD_INVALID, fmt::format("collective is {}: expected one of hvd_collective, {} to {}",
                                       collective, HVD_COLLECTIVE_BROADCAST, last));
}

}  // namespace hvd::collective

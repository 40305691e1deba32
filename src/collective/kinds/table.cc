// The table of collectives, in the order of Kind.
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
extern const Row kSendRow;             // broadcast.cc
extern const Row kReduceRow;           // allreduce.cc
extern const Row kGatherRow;           // alltoall.cc
extern const Row kScatterRow;          // alltoall.cc

namespace {

constexpr const Row* kTable[] = {
    &kBroadcastRow, &kAllreduceRow,       &kAllgatherRow, &kReducescatterRow, &kAlltoallRow,
    &kBarrierRow,   &kBroadcastObjectRow, &kJoinRow,      &kAgreeRow,         &kSendRow,
    &kReduceRow,    &kGatherRow,          &kScatterRow,
};

}  // namespace

const Row* find_row(uint8_t kind) { return kind < std::size(kTable) ? kTable[kind] : nullptr; }

const Row& row_of(Kind kind) { return *kTable[static_cast<size_t>(kind)]; }

}  // namespace hvd::collective

// Gloo's own algorithms, one call each, over the kit's connections.
#include "modules/gloo/algorithms.h"

#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "modules/gloo/context.h"
#include "numeric/dtype.h"
#include "numeric/reduce.h"

namespace hvdgloo {
namespace {

using hvdkit::Party;
using hvdkit::Task;

// Gloo's options are of bytes: only its allreduce has to know elements, and takes their size from a type.
template <size_t size>
struct Element {
  char bytes[size];
};

void broadcast(const std::shared_ptr<Context>& context, const Task& task, uint32_t tag) {
  gloo::BroadcastOptions options(context);
  options.setOutput(static_cast<char*>(task.op.output), task.op.count * hvd::dtype_size(task.op.dtype));
  options.setRoot(task.root);
  options.setTag(tag);
  gloo::broadcast(options);
}

template <size_t size>
void allreduce_of(const std::shared_ptr<Context>& context, const Task& task, uint32_t tag) {
  const hvd_backend_op& op = task.op;
  gloo::AllreduceOptions options(context);
  if (op.input != op.output)
    options.setInput(static_cast<Element<size>*>(const_cast<void*>(op.input)), op.count);
  options.setOutput(static_cast<Element<size>*>(op.output), op.count);
  const hvd_dtype dtype = op.dtype;
  const hvd_reduction reduction = op.reduction;
  options.setReduceFunction([dtype, reduction](void* to, const void* a, const void* b, size_t count) {
    hvd::reduce(dtype, reduction, to, a, b, count);
  });
  options.setTag(tag);
  gloo::allreduce(options);
  if (reduction == HVD_REDUCTION_AVERAGE)
    hvd::divide(dtype, op.output, op.count, static_cast<int>(task.ranks.size()));
}

void allreduce(const std::shared_ptr<Context>& context, const Task& task, uint32_t tag) {
  switch (hvd::dtype_size(task.op.dtype)) {
    case 1: return allreduce_of<1>(context, task, tag);
    case 2: return allreduce_of<2>(context, task, tag);
    case 4: return allreduce_of<4>(context, task, tag);
    default: return allreduce_of<8>(context, task, tag);
  }
}

std::vector<size_t> bytes_of(const Task& task) {
  std::vector<size_t> sizes;
  for (const size_t count : task.counts) sizes.push_back(count * hvd::dtype_size(task.op.dtype));
  return sizes;
}

void allgather(const std::shared_ptr<Context>& context, const Task& task, uint32_t tag) {
  const std::vector<size_t> sizes = bytes_of(task);
  const auto me = static_cast<size_t>(task.me);
  auto* const output = static_cast<char*>(task.op.output);
  const size_t offset = std::accumulate(sizes.begin(), sizes.begin() + task.me, size_t{0});
  if (sizes[me] > 0 && output + offset != task.op.input)
    std::memmove(output + offset, task.op.input, sizes[me]);
  gloo::AllgathervOptions options(context);
  options.setOutput(output, sizes);
  options.setTag(tag);
  gloo::allgatherv(options);
}

void alltoall(const std::shared_ptr<Context>& context, const Task& task, uint32_t tag) {
  const std::vector<size_t> sizes = bytes_of(task);
  const auto n = static_cast<std::ptrdiff_t>(task.ranks.size());
  gloo::AlltoallvOptions options(context);
  options.setInput(static_cast<char*>(const_cast<void*>(task.op.input)),
                   std::vector<int64_t>(sizes.begin(), sizes.begin() + n));
  options.setOutput(static_cast<char*>(task.op.output), std::vector<int64_t>(sizes.begin() + n, sizes.end()));
  options.setTag(tag);
  gloo::alltoallv(options);
}

void barrier(const std::shared_ptr<Context>& context, uint32_t tag) {
  gloo::BarrierOptions options(context);
  options.setTag(tag);
  gloo::barrier(options);
}

size_t most_of(const std::vector<size_t>& counts) {
  return counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
}

}  // namespace

void run(Party& party, const Task& task) {
  const hvd_collective collective = task.op.collective;
  // All members must come to the same answer: of an alltoall each knows its own row and column alone.
  const bool empty = collective == HVD_COLLECTIVE_ALLGATHER ? most_of(task.counts) == 0
                     : collective == HVD_COLLECTIVE_ALLTOALL
                         ? false
                         : collective != HVD_COLLECTIVE_BARRIER && task.op.count == 0;
  const bool ours = collective == HVD_COLLECTIVE_REDUCESCATTER ||
                    (collective == HVD_COLLECTIVE_ALLREDUCE && hvd::is_narrow_float(task.op.dtype));
  if (party.size() == 1 || empty || ours) return hvdkit::run_collective(party, task);
  const auto context = std::make_shared<Context>(party);
  const auto tag = static_cast<uint32_t>(party.slot);
  switch (collective) {
    case HVD_COLLECTIVE_BROADCAST: return broadcast(context, task, tag);
    case HVD_COLLECTIVE_ALLREDUCE: return allreduce(context, task, tag);
    case HVD_COLLECTIVE_ALLGATHER: return allgather(context, task, tag);
    case HVD_COLLECTIVE_ALLTOALL: return alltoall(context, task, tag);
    default: return barrier(context, tag);
  }
}

}  // namespace hvdgloo

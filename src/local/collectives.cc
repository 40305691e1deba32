// Opens, feeds and ends the collectives over shared memory.
#include "local/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "local/across.h"
#include "local/host_collectives.h"
#include "numeric/dtype.h"

namespace hvd::local {
namespace {

Status refuse(hvd_status code, std::string message) {
  Status status(code, std::move(message));
  status.backend = "local";
  return status;
}

/// One operation with what is looked up for it.
class Collective {
 public:
  Collective(HostGroup& group, const Hosts& hosts, const hvd_backend_op& op,
             std::span<const backend::Part> parts, std::span<const int32_t> ranks, InnerOps& inner)
      : group_(group),
        hosts_(hosts),
        op_(op),
        parts_(parts),
        ranks_(ranks),
        inner_(inner),
        element_(dtype_size(op.dtype)),
        team_{group, op.sequence, {}, {}, 0, 0} {
    for (int32_t rank : ranks) {
      if (host_of(rank) != host_of(group.rank(group.index()))) {
        one_host_ = false;
        continue;
      }
      const int32_t index = group.index_of(rank);
      if (index == group.index()) {
        team_.me = team_.size();
      } else {
        team_.others.push_back(index);
      }
      team_.members.push_back(index);
    }
  }

  Status check() const {
    if (op_.collective < HVD_COLLECTIVE_BROADCAST || op_.collective > HVD_COLLECTIVE_ALLTOALL) {
      return refuse(HVD_UNSUPPORTED, fmt::format("collective {} is not supported", op_.collective));
    }
    if (op_.collective != HVD_COLLECTIVE_BARRIER && element_ == 0) {
      return refuse(HVD_INVALID, fmt::format("dtype {} is unknown", op_.dtype));
    }
    const bool counted = op_.collective == HVD_COLLECTIVE_ALLGATHER ||
                         op_.collective == HVD_COLLECTIVE_REDUCESCATTER ||
                         op_.collective == HVD_COLLECTIVE_ALLTOALL;
    if (counted && op_.counts == nullptr) {
      return refuse(HVD_INVALID, "an operation with parts of different sizes comes without counts");
    }
    if (op_.collective == HVD_COLLECTIVE_BROADCAST &&
        !std::binary_search(ranks_.begin(), ranks_.end(), op_.root)) {
      return refuse(HVD_INVALID, fmt::format("root {} takes no part in its broadcast", op_.root));
    }
    return {};
  }

  Task run() {
    switch (op_.collective) {
      case HVD_COLLECTIVE_BROADCAST: return broadcast();
      case HVD_COLLECTIVE_ALLREDUCE: return allreduce();
      case HVD_COLLECTIVE_ALLGATHER: return allgather();
      case HVD_COLLECTIVE_REDUCESCATTER: return reducescatter();
      case HVD_COLLECTIVE_ALLTOALL: return alltoall();
      default: return one_host_ ? host_barrier(team_) : among_all();
    }
  }

 private:
  int32_t host_of(int32_t rank) const { return hosts_.group_of[static_cast<size_t>(rank)]; }
  int32_t participants() const { return static_cast<int32_t>(ranks_.size()); }
  const uint8_t* input() const { return static_cast<const uint8_t*>(op_.input); }
  uint8_t* output() const { return static_cast<uint8_t*>(op_.output); }

  // Through the inner backend as it is.
  Task among_all() {
    hvd_backend_op op = op_;
    op.ranks = ranks_.data();
    op.rank_count = participants();
    InnerOps::Ticket* ticket = nullptr;
    if (Status status = inner_.submit(op, {}, 0, &ticket); !status.ok()) co_return status;
    co_return co_await inner_.wait(*ticket);
  }

  // root: the rank that leads its host, -1: the lowest everywhere.
  Span across(int32_t root) {
    std::vector<int32_t> leaders;
    std::vector<bool> seen(hosts_.groups.size());
    const int32_t root_host = root >= 0 ? host_of(root) : -1;
    for (int32_t rank : ranks_) {
      const int32_t host = host_of(rank);
      if (seen[static_cast<size_t>(host)]) continue;
      seen[static_cast<size_t>(host)] = true;
      leaders.push_back(host == root_host ? root : rank);
    }
    std::sort(leaders.begin(), leaders.end());
    const int32_t index = root >= 0 ? group_.index_of(root) : -1;
    const auto at = std::find(team_.members.begin(), team_.members.end(), index);
    const auto leader = at == team_.members.end() ? 0 : static_cast<int32_t>(at - team_.members.begin());
    return {team_, leader, std::move(leaders), inner_};
  }

  Task broadcast() {
    std::vector<backend::Part> parts(parts_.begin(), parts_.end());
    for (backend::Part& part : parts) part.input = part.output;  // on every rank the tensor is the output
    const Tensors tensors(parts, element_);
    if (tensors.count() == 0 || ranks_.size() == 1) co_return Status();
    if (!one_host_) {
      Span span = across(op_.root);
      co_return co_await broadcast_across(span, op_, tensors);
    }
    const auto root = std::find(team_.members.begin(), team_.members.end(), group_.index_of(op_.root));
    co_return co_await host_broadcast(team_, tensors, static_cast<int32_t>(root - team_.members.begin()));
  }

  Task allreduce() {
    const Tensors tensors(parts_, element_);
    if (tensors.count() == 0) co_return Status();
    if (ranks_.size() == 1) {
      tensors.copy();
      co_return Status();
    }
    if (one_host_)
      co_return co_await host_allreduce(team_, tensors, op_.dtype, op_.reduction, participants());
    Span span = across(-1);
    co_return co_await allreduce_across(span, op_, tensors, participants());
  }

  Task allgather() {
    const std::span<const size_t> counts(op_.counts, ranks_.size());
    if (one_host_) {
      std::vector<size_t> sizes(counts.begin(), counts.end());
      for (size_t& size : sizes) size *= element_;
      co_return co_await host_allgather(team_, input(), output(), sizes);
    }
    // Leaders can gather whole hosts only where the hosts' parts lie together.
    std::vector<size_t> host_counts;
    std::vector<bool> seen(hosts_.groups.size());
    int32_t last = -1;
    size_t first = ranks_.size();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const int32_t host = host_of(ranks_[i]);
      if (host != last) {
        if (seen[static_cast<size_t>(host)]) co_return co_await among_all();
        seen[static_cast<size_t>(host)] = true;
        host_counts.push_back(0);
        last = host;
        if (group_.index_of(ranks_[i]) >= 0) first = i;
      }
      host_counts.back() += counts[i];
    }
    Span span = across(-1);
    co_return co_await allgather_across(span, op_, counts, first, host_counts);
  }

  Task reducescatter() {
    if (!one_host_) co_return co_await among_all();
    co_return co_await host_reducescatter(team_, input(), output(), {op_.counts, ranks_.size()}, op_.dtype,
                                          op_.reduction, participants());
  }

  Task alltoall() {
    if (!one_host_) co_return co_await among_all();
    std::vector<size_t> sizes(op_.counts, op_.counts + 2 * ranks_.size());
    for (size_t& size : sizes) size *= element_;
    const std::span<const size_t> all(sizes);
    co_return co_await host_alltoall(team_, input(), output(), all.first(ranks_.size()),
                                     all.last(ranks_.size()));
  }

  HostGroup& group_;
  const Hosts& hosts_;
  const hvd_backend_op& op_;
  const std::span<const backend::Part> parts_;
  const std::span<const int32_t> ranks_;
  InnerOps& inner_;
  const size_t element_;
  Team team_;
  bool one_host_ = true;
};

}  // namespace

Task run_collective(HostGroup& group, const Hosts& hosts, const hvd_backend_op& op,
                    std::span<const backend::Part> parts, std::span<const int32_t> ranks, InnerOps& inner) {
  Collective collective(group, hosts, op, parts, ranks, inner);
  if (Status status = collective.check(); !status.ok()) co_return status;
  co_return co_await collective.run();
}

}  // namespace hvd::local

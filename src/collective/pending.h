// An operation that some ranks have called, as the matcher keeps it, and the verdict on one that all have.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "collective/messages.h"
#include "collective/mismatch.h"

namespace hvd::collective {

struct Pending {
  /// Small: one rank can open many operations, and each has one of these for every rank.
  struct Call {
    uint32_t required : 1 = 0;  // this rank has to call
    uint32_t here : 1 = 0;      // it has
    uint32_t differs : 1 = 0;   // and disagrees with the first
    uint32_t at : 29 = 0;       // where its request is
  };
  std::string key;
  int32_t opened_by = 0;          // the rank in whose share it is
  SignaturePtr first;             // the call that came first: all others are compared with it
  std::vector<Call> calls;        // by rank
  std::vector<Request> requests;  // of those that are here, as they came
  size_t required = 0, here = 0, differ = 0;
  Time since;
  Time deadline = Time::max();
  Time stall_at = Time::max();
  Duration stall_step{0};
  OutcomePtr deadlock;  // set once every rank was seen waiting for another name

  bool complete() const { return here == required; }
  Time due() const { return std::min(deadline, stall_at); }
  const Request& at(int32_t rank) const { return requests[calls[static_cast<size_t>(rank)].at]; }
  Request& at(int32_t rank) { return requests[calls[static_cast<size_t>(rank)].at]; }

  std::vector<int32_t> ranks(bool here_or_missing) const {
    std::vector<int32_t> result;
    for (size_t r = 0; r < calls.size(); ++r) {
      if (calls[r].required != 0 && (calls[r].here != 0) == here_or_missing)
        result.push_back(static_cast<int32_t>(r));
    }
    return result;
  }
  /// Who has called, and how they differ; "" if they agree.
  std::string mismatch(const std::vector<std::string>& hosts) const {
    if (differ == 0) return "";
    std::vector<const Signature*> made(calls.size(), nullptr);
    for (size_t r = 0; r < calls.size(); ++r) {
      if (calls[r].here != 0) made[r] = at(static_cast<int32_t>(r)).call.get();
    }
    return describe_mismatch(made, hosts);
  }
  void require(size_t rank) {
    if (calls[rank].required != 0) return;
    calls[rank].required = 1;
    ++required;
  }
  void excuse(size_t rank) {
    if (calls[rank].required == 0 || calls[rank].here != 0) return;
    calls[rank].required = 0;
    --required;
  }
};

/// How an operation goes on that all ranks have called.
struct Verdict {
  std::shared_ptr<Outcome> outcome;               // of all, but for
  std::vector<std::shared_ptr<Outcome>> by_rank;  // those that have their own (by rank; empty: none has)
  std::vector<int32_t> participants;              // all who called
  uint64_t operations = 0;                        // backend operations that it takes at most

  OutcomePtr of(int32_t rank) const {
    const auto r = static_cast<size_t>(rank);
    return r < by_rank.size() && by_rank[r] != nullptr ? by_rank[r] : outcome;
  }
};

std::shared_ptr<Outcome> failed_outcome(hvd_status code, std::string message, int32_t rank = -1);

}  // namespace hvd::collective

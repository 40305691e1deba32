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
  struct Call {
    bool required = false;  // this rank has to call
    bool here = false;      // it has
    bool differs = false;   // and disagrees with the first
    Request request;
  };
  std::string key;
  SignaturePtr first;       // the call that came first: all others are compared with it
  std::vector<Call> calls;  // by rank
  size_t required = 0, here = 0, differ = 0;
  Time since;
  Time deadline = Time::max();
  Time stall_at = Time::max();
  Duration stall_step{0};
  OutcomePtr deadlock;  // set once every rank was seen waiting for another name

  bool complete() const { return here == required; }
  Time due() const { return std::min(deadline, stall_at); }
  const Request& at(int32_t rank) const { return calls[static_cast<size_t>(rank)].request; }

  std::vector<int32_t> ranks(bool here_or_missing) const {
    std::vector<int32_t> result;
    for (size_t r = 0; r < calls.size(); ++r) {
      if (calls[r].required && calls[r].here == here_or_missing) result.push_back(static_cast<int32_t>(r));
    }
    return result;
  }
  /// Who has called, and how they differ; "" if they agree.
  std::string mismatch(const std::vector<std::string>& hosts) const {
    if (differ == 0) return "";
    std::vector<const Signature*> made(calls.size(), nullptr);
    for (size_t r = 0; r < calls.size(); ++r) {
      if (calls[r].here) made[r] = calls[r].request.call.get();
    }
    return describe_mismatch(made, hosts);
  }
  void require(size_t rank) {
    if (calls[rank].required) return;
    calls[rank].required = true;
    ++required;
  }
  void excuse(size_t rank) {
    if (!calls[rank].required || calls[rank].here) return;
    calls[rank].required = false;
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

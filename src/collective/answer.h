// Rank 0's outcome of an operation, as this rank sees it: whether it fits, and where the results go.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "collective/kinds/kind.h"
#include "collective/operation.h"

namespace hvd::collective {

struct Answer {
  Operation& op;
  const Outcome& outcome;
  int32_t rank;
  const std::vector<std::string>& hosts;

  const Submission& submission() const { return op.submission; }
  const Row& row() const { return row_of(op.submission.kind); }
  /// How many ranks take part.
  size_t count() const {
    return outcome.participants.empty() ? op.call->member_count(hosts.size()) : outcome.participants.size();
  }
  /// This rank's place among them.
  size_t me() const {
    const auto& ranks = outcome.participants.empty() ? op.call->members : outcome.participants;
    if (ranks.empty()) return static_cast<size_t>(rank);
    return static_cast<size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  }
  /// Nobody else takes part: this rank's own data is the result.
  bool alone() const;
  /// Rows of the index-th tensor that come from each participant.
  std::span<const int64_t> rows(size_t tensor) const {
    return std::span(outcome.rows).subspan(tensor * count(), count());
  }
  /// Why it can't be the outcome of this operation, or NULL. Of rank 0's own outcomes all fit.
  const char* misfit() const;
  /// Completes the operation without the backend: the outcome brings what there is.
  Status settle();
};

/// The shape of a result: the input's with another first dimension; {-1} if that is more than memory can be.
Shape with_rows(const Tensor& input, std::span<const int64_t> rows);
/// Makes room for one result for each input.
void begin_results(Answer& answer);
/// Where the index-th result goes: the caller's room, or the library's memory. Without room for it the
/// operation's verdict says so, and with `discard` the result is thrown away.
Status place_result(Answer& answer, size_t index, const Shape& shape, bool discard);

}  // namespace hvd::collective

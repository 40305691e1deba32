// An operation that all ranks have called, and what becomes of it: it fails, it is complete with what the
// calls brought, or it runs in the backend. Rank 0's view, as the rows see it. Pure.
#pragma once

#include <string>
#include <vector>

#include "collective/agreement.h"
#include "collective/kinds/kind.h"
#include "collective/pending.h"

namespace hvd::collective {

class Decision {
 public:
  /// `last_joined`: the rank that called a join last.
  Decision(Pending& pending, Verdict& verdict, const std::vector<std::string>& hosts, Agreement& agreement,
           int32_t last_joined, bool join_counts)
      : agreement(agreement),
        last_joined(last_joined),
        pending_(pending),
        verdict_(verdict),
        hosts_(hosts),
        join_counts_(join_counts) {}

  const Signature& call() const { return *pending_.first; }
  /// Who takes part, ascending.
  const std::vector<int32_t>& ranks() const { return verdict_.participants; }
  Request& request(int32_t rank) { return pending_.at(rank); }
  Request& root() { return request(call().root); }
  /// Of all tensors of the first call.
  int64_t bytes() const;
  /// Its one rank has all it needs, and its own hands can move it: device memory is moved by its backend
  /// alone.
  bool alone() const { return ranks().size() == 1 && (row_of(call().kind).in_place || !call().on_device()); }
  /// Everybody's data has come with the call.
  bool carried() const;

  /// What everybody gets, but for those that have their own.
  Outcome& outcome() { return *verdict_.outcome; }
  Outcome& own(int32_t rank);
  /// Operations of the backend that it takes at most; 0: it is complete with the outcome.
  void run(uint64_t operations) { verdict_.operations = operations; }
  bool runs() const { return verdict_.operations > 0; }
  void fail(hvd_status code, std::string text);

  // What several collectives need.
  /// Reduces what was carried, all parts in the order of ranks: whoever reduces them so gets the same bits.
  void reduce();
  /// Device memory: fails the operation if somebody's output is too small for the rows that it gets.
  bool short_of_room();

  Agreement& agreement;
  const int32_t last_joined;

 private:
  Pending& pending_;
  Verdict& verdict_;
  const std::vector<std::string>& hosts_;
  const bool join_counts_;
};

/// Of one row, the extents behind the first: bytes.
size_t row_bytes(const Spec& spec);
size_t bytes_of(const Spec& spec);
void append(std::vector<uint8_t>* to, const uint8_t* from, size_t bytes);

}  // namespace hvd::collective

// A process set through the generations: a name, a rule, and whom they mean in the assignment at hand. Pure:
// it knows no engine and sends nothing. Members that make the same set resolve it to the same ranks because
// assignments agree (all but the worker's own rank in them).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "session/session.h"

namespace hvd::elastic {

/// A process set in one generation, as one worker sees it.
struct SetPlace {
  uint64_t generation = 0;
  std::vector<int32_t> ranks;  // the members, ascending
  int32_t rank = -1;           // of this worker among them; -1: it is no member
  int32_t local_rank = -1, local_size = 0;
  int32_t cross_rank = -1, cross_size = 0;
};

/// Thread-safe.
class ProcessSet {
 public:
  /// rule 0 is HVD_SET_RULE_WORKERS. `ranks`: nothing for the rules that find the members by themselves.
  /// Throws Error(HVD_INVALID).
  ProcessSet(std::string name, hvd_set_rule rule, std::optional<std::vector<int32_t>> ranks,
             const session::Assignment& assignment);

  const std::string& name() const { return name_; }

  /// Whom it means in `assignment`; looked up once a generation. Throws Error(HVD_INVALID) if it has ended.
  std::shared_ptr<const SetPlace> in(const session::Assignment& assignment);

  /// The same; throws Error(HVD_INVALID) also if this worker is no member: then it takes part in no
  /// operation.
  std::shared_ptr<const SetPlace> member_of(const session::Assignment& assignment);

 private:
  std::vector<int32_t> resolve(const session::Assignment& assignment) const;

  const std::string name_;
  const hvd_set_rule rule_;
  const uint64_t generation_;      // in which it was made
  std::vector<int32_t> ranks_;     // as given, ascending
  std::vector<uint64_t> workers_;  // who these were, ascending

  std::mutex mutex_;
  std::shared_ptr<const SetPlace> place_;  // in the generation that was asked for last
};

}  // namespace hvd::elastic

// How operations come to the engine of the current generation: names, members and time-outs are filled in.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "elastic/current_generation.h"

namespace hvd::elastic {

/// Thread-safe.
class Submitter {
 public:
  Submitter(CurrentGeneration& current, Duration operation_timeout)
      : current_(current), operation_timeout_(operation_timeout) {}

  /// Among the members of `set`, or all ranks. A timeout of 0 is the option's. Throws Error with why there is
  /// no generation, or HVD_INVALID if this worker is no member.
  std::shared_ptr<collective::Operation> submit(collective::Submission submission, ProcessSet* set = nullptr,
                                                Duration timeout = Duration(0));
  /// The same for a caller that would wait at once, for so long. Nothing if the ranks met
  /// (collective/meeting.cc) and it is complete, with *ret_met.
  std::shared_ptr<collective::Operation> meet_or_submit(collective::Submission submission, Status* ret_met,
                                                        Duration wait, ProcessSet* set, Duration timeout);
  /// submit and wait.
  Status run(collective::Submission submission,
             std::shared_ptr<collective::Operation>* ret_operation = nullptr, ProcessSet* set = nullptr,
             Duration timeout = Duration(0));
  /// The engine ends every operation within its time-out; the margin is the last resort (contract 12).
  Duration longest_wait(collective::Kind kind, Duration timeout) const;
  Duration operation_timeout() const { return operation_timeout_; }

 private:
  Duration patience(collective::Kind kind, Duration timeout) const;
  void complete(collective::Submission* submission, ProcessSet* set, Duration timeout,
                const EngineUse& use) const;
  std::shared_ptr<collective::Operation> submit_unnamed(collective::Submission submission, EngineUse& use);

  CurrentGeneration& current_;
  const Duration operation_timeout_;

  std::mutex unnamed_mutex_;                 // guards what follows; held over a submission
  std::map<std::string, uint64_t> unnamed_;  // operations without a name so far, by process set
  uint64_t unnamed_generation_ = 0;
};

}  // namespace hvd::elastic

// How operations come to the engine of the current generation: names, members and time-outs are filled in.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "elastic/current_generation.h"

namespace hvd::elastic {

/// Thread-safe.
class Submitter {
 public:
  /// The current generation is lost, and why.
  using Lose = std::function<void(const std::string& reason)>;
  /// margin: between an operation's time-out, by which the engine has ended it, and the last resort.
  Submitter(CurrentGeneration& current, Duration operation_timeout, Lose lose, Duration margin = seconds(30))
      : current_(current), operation_timeout_(operation_timeout), lose_(std::move(lose)), margin_(margin) {}

  /// Among the members of `set`, or all ranks. A timeout of 0 is the option's. Throws Error with why there is
  /// no generation, or HVD_INVALID if this worker is no member.
  std::shared_ptr<collective::Operation> submit(collective::Submission submission, ProcessSet* set = nullptr,
                                                Duration timeout = Duration(0));
  /// The same for a caller that would wait at once. Nothing if the ranks met
  /// (collective/meeting.cc) and it is complete, with *ret_met.
  std::shared_ptr<collective::Operation> meet_or_submit(collective::Submission submission, Status* ret_met,
                                                        ProcessSet* set, Duration timeout);
  /// Waits until it is complete and gives its status. One that is not by `longest` loses the generation,
  /// which ends it: what it borrows is its caller's when this returns (contract 12).
  Status finish(collective::Operation& operation, Duration longest);
  /// submit and finish.
  Status run(collective::Submission submission,
             std::shared_ptr<collective::Operation>* ret_operation = nullptr, ProcessSet* set = nullptr,
             Duration timeout = Duration(0));
  /// The engine ends an operation within its time-out unless its data is on its way.
  Duration longest_wait(collective::Kind kind, Duration timeout) const;
  Duration operation_timeout() const { return operation_timeout_; }

 private:
  Duration patience(collective::Kind kind, Duration timeout) const;
  void complete(collective::Submission* submission, ProcessSet* set, Duration timeout,
                const EngineUse& use) const;
  std::shared_ptr<collective::Operation> submit_unnamed(collective::Submission submission, EngineUse& use);

  CurrentGeneration& current_;
  const Duration operation_timeout_;
  const Lose lose_;
  const Duration margin_;

  std::mutex unnamed_mutex_;                 // guards what follows; held over a submission
  std::map<std::string, uint64_t> unnamed_;  // operations without a name so far, by process set
  uint64_t unnamed_generation_ = 0;
};

}  // namespace hvd::elastic

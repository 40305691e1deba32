// Operations without a name are numbered alike on all ranks, and each has a time-out.
#include "elastic/submitter.h"

#include <algorithm>

#include "collective/kinds/kind.h"

namespace hvd::elastic {

std::shared_ptr<collective::Operation> Submitter::submit(collective::Submission submission, ProcessSet* set,
                                                         Duration timeout) {
  EngineUse use = current_.engine();
  complete(&submission, set, timeout, use);
  if (submission.name.empty()) return submit_unnamed(std::move(submission), use);
  return use->submit(std::move(submission));
}

std::shared_ptr<collective::Operation> Submitter::meet_or_submit(collective::Submission submission,
                                                                 Status* ret_met, ProcessSet* set,
                                                                 Duration timeout) {
  EngineUse use = current_.engine();
  complete(&submission, set, timeout, use);
  if (submission.name.empty()) return submit_unnamed(std::move(submission), use);
  if (std::optional<collective::Engine::Concluded> met = use->meet(submission)) {
    *ret_met = std::move(met->status);
    return std::move(met->operation);
  }
  return use->submit(std::move(submission));
}

std::shared_ptr<collective::Operation> Submitter::submit_unnamed(collective::Submission submission,
                                                                 EngineUse& use) {
  // A number is spent only on what the others will see as well: what fails on this rank alone must not put it
  // out of step.
  const uint64_t generation = current_.generation();
  std::lock_guard lock(unnamed_mutex_);
  if (unnamed_generation_ != generation) unnamed_.clear();
  unnamed_generation_ = generation;
  uint64_t& next = unnamed_[submission.set];
  submission.name = fmt::format("hvd.unnamed.{}", next);
  std::shared_ptr<collective::Operation> operation = use->submit(std::move(submission));
  const hvd_status code = operation->done() ? operation->status().code : hvd_status{HVD_OK};
  if (code != HVD_INVALID && code != HVD_UNSUPPORTED) ++next;
  return operation;
}

/// While the engine is held its generation stays the current one: members and engine fit each other.
void Submitter::complete(collective::Submission* submission, ProcessSet* set, Duration timeout,
                         const EngineUse& use) const {
  submission->timeout = patience(submission->kind, timeout);
  if (!use) throw Error(current_.why_no_engine());
  if (set != nullptr) {
    submission->set = set->name();
    submission->members = current_.place_in(*set, true)->ranks;
  }
  collective::resolve(submission, use.place().rank, use.place().size);
}

Duration Submitter::patience(collective::Kind kind, Duration timeout) const {
  if (timeout > Duration(0)) return timeout;
  // It lasts as long as the others have data; that they go on is watched by their own operations.
  return row_of(kind).patient ? std::max<Duration>(std::chrono::hours(24), operation_timeout_)
                              : operation_timeout_;
}

Duration Submitter::longest_wait(collective::Kind kind, Duration timeout) const {
  return patience(kind, timeout) + margin_;
}

Status Submitter::finish(collective::Operation& operation, Duration longest) {
  if (operation.wait(longest)) return operation.status();
  const std::string whom = operation.waiting_for();
  lose_(fmt::format("an operation did not complete within {:g} s: {}", to_seconds(longest),
                    whom.empty() ? "nobody says why" : whom));
  // The backend was aborted, and gives back what it has.
  if (operation.wait(longest)) return operation.status();
  return {HVD_TIMEOUT, "an operation did not end with its generation: its memory is still in use"};
}

Status Submitter::run(collective::Submission submission,
                      std::shared_ptr<collective::Operation>* ret_operation, ProcessSet* set,
                      Duration timeout) {
  const Duration longest = longest_wait(submission.kind, timeout);
  Status met;
  std::shared_ptr<collective::Operation> operation =
      ret_operation == nullptr ? meet_or_submit(std::move(submission), &met, set, timeout)
                               : submit(std::move(submission), set, timeout);
  if (operation == nullptr) return met;
  Status status = finish(*operation, longest);
  if (status.ok() && ret_operation != nullptr) *ret_operation = std::move(operation);
  return status;
}

}  // namespace hvd::elastic

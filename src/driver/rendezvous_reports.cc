// What workers report of themselves, checked: nothing is decided by it.
#include <fmt/format.h>

#include "driver/rendezvous_impl.h"

namespace hvd::driver {
namespace {

constexpr int64_t kLongest = int64_t{20} * 366 * 24 * 3600 * 1000000000;  // twenty years

Duration checked(int64_t nanoseconds, const char* what) {
  if (nanoseconds < 0 || nanoseconds > kLongest)
    throw Error(HVD_INVALID, fmt::format("{} of {} ns: expected 0 to {}", what, nanoseconds, kLongest));
  return Duration(nanoseconds);
}

}  // namespace

void RendezvousServer::progressed(uint64_t worker, const wire::ProgressT* told) {
  if (told != nullptr) progressed(worker, told->commits, told->useful_ns, told->commit_ns, told->sync_bytes);
}

void RendezvousServer::progressed(uint64_t worker, uint64_t commits, int64_t useful_ns, int64_t commit_ns,
                                  uint64_t sync_bytes) {
  if (!events_.progress) return;
  status::Progress progress;
  progress.commits = commits;
  progress.useful = checked(useful_ns, "useful time");
  progress.commit = checked(commit_ns, "time in commits");
  progress.sync_bytes = sync_bytes;
  events_.progress(worker, progress);
}

void RendezvousServer::recovered(uint64_t worker, const wire::EnvelopeT& message) {
  if (!events_.recovered) return;
  const wire::RecoveredT& told = *message.body.AsRecovered();
  if (told.attempts < 0) throw Error(HVD_INVALID, fmt::format("a recovery of {} attempts", told.attempts));
  status::Recovery recovery;
  const int64_t phases[] = {told.detection_ns,  told.abort_ns, told.restore_ns, told.forming_ns,
                            told.connecting_ns, told.sync_ns,  told.total_ns};
  static_assert(std::size(phases) == status::kPhases);
  for (size_t i = 0; i < status::kPhases; ++i)
    recovery.phases[i] = checked(phases[i], status::kPhaseNames[i]);
  recovery.attempts = told.attempts;
  recovery.sync_bytes = told.sync_bytes;
  events_.recovered(worker, message.generation, recovery);
}

std::optional<RendezvousServer::Hearing> RendezvousServer::hearing(uint64_t worker, Time now) const {
  const auto found = connections_.find(worker);
  if (found == connections_.end()) return std::nullopt;
  const Connection& connection = *found->second;
  return Hearing{std::max(now - connection.heard, Duration(0)), connection.slow, connection.revision};
}

}  // namespace hvd::driver

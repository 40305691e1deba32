// How a job is doing at one moment, as plain values: what every view of it (text, JSON, metrics, the page)
// reads.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "hvd/driver.h"

namespace hvd::status {

/// The phases of a recovery, as in hvd_recovery_info.
enum class Phase : uint8_t { kDetection, kAbort, kRestore, kForming, kConnecting, kSync, kTotal };
inline constexpr size_t kPhases = 7;
inline constexpr const char* kPhaseNames[kPhases] = {"detection",  "abort", "restore", "forming",
                                                     "connecting", "sync",  "total"};

/// One worker's way through one recovery.
struct Recovery {
  std::array<Duration, kPhases> phases{};
  int32_t attempts = 0;
  uint64_t sync_bytes = 0;
};

enum class WorkerState : uint8_t {
  kStarting,
  kWaiting,
  kSyncing,
  kTraining,
  kRecovering,
  kSilent,
  kDone,
  kEnding
};
inline constexpr size_t kWorkerStates = 8;
inline constexpr const char* kWorkerStateNames[kWorkerStates] = {
    "starting", "waiting", "syncing", "training", "recovering", "silent", "done", "ending"};

struct WorkerView {
  uint64_t id = 0;
  std::string host;
  int32_t slot = 0;
  int32_t rank = -1;  // in the current generation
  WorkerState state = WorkerState::kStarting;
  uint64_t revision = 0, commits = 0;
  double commits_per_second = 0;
  std::optional<Duration> silence;  // since its last message
  std::optional<Recovery> last;     // of its recoveries
};

struct HostView {
  std::string name;
  int32_t slots = 0, failures = 0;
  bool blocked = false, drained = false;
  std::optional<Duration> blocked_for;  // absent: for good
};

enum class Cause : uint8_t { kStart, kPeerLost, kHostsUpdated };
inline constexpr size_t kCauses = 3;
inline constexpr const char* kCauseNames[kCauses] = {"start", "peer_lost", "hosts_updated"};

struct GenerationView {
  uint64_t number = 0;
  Cause cause = Cause::kStart;
  std::string reason;  // who was lost before it; "" after a planned change
  int32_t size = 0;
  Time formed{};
  std::optional<Time> ended;         // lost, or replaced
  int32_t reports = 0;               // members that have told of their recovery
  std::optional<Recovery> recovery;  // of the slowest of these
};

/// Of seconds. counts: one for each bound, and of what is above all of them.
struct Histogram {
  static constexpr std::array<double, 12> kBounds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                     0.5,   1,    2.5,   10,   60,  600};
  std::array<uint64_t, kBounds.size() + 1> counts{};
  double sum = 0;
  void add(double seconds);
};

struct LogLine {
  int64_t unix_ms = 0;
  std::string text;
};

struct Snapshot {
  std::string job;
  hvd_phase phase = HVD_PHASE_NEW;
  int32_t size = 0, workers = 0, slots = 0, resets = 0, hosts_blocked = 0, port = 0;
  uint64_t generation = 0, epoch = 0, term = 0;
  std::string sentence;    // how the job ended, or what it waits for; "" while it trains
  bool try_again = false;  // a job that has failed may do better at another time
  std::string stall;       // newest report of an operation that waits for somebody, in the current generation

  // What follows is filled in where somebody asks for all of it.
  Time at{};            // of this snapshot,
  int64_t unix_ms = 0;  // and by the calendar
  Duration wall{0};     // since the driver began, until the job's end
  double useful = -1;   // seconds of training kept by commits, of an average member; below 0: nobody has told
  int32_t stalled = 0;  // operations that wait for ranks
  double commits_per_second = 0;
  uint64_t commits = 0;  // of all workers together
  double commit_seconds = 0;
  uint64_t sync_bytes = 0;
  Duration last_recovery{0};  // of the slowest member that has told of it
  std::array<uint64_t, kCauses> resets_by_cause{};
  std::array<Histogram, kPhases> recoveries{};
  std::vector<HostView> hosts;
  std::vector<WorkerView> all;
  std::vector<GenerationView> generations;  // the last ones, oldest first
  std::vector<LogLine> log;

  /// 0 to 1; below 0: unknown.
  double goodput() const;
};

}  // namespace hvd::status

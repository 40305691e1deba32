// The worker's end of the control channel: hello, ready, heartbeat, assignment, abort, done. The
// decisions are in SessionCore (pure); Session runs them over a wire::Channel on a loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/member.h"
#include "base/status.h"

namespace hvd::session {

/// Why a worker wants another generation.
enum class Cause : uint8_t { kStart, kPeerLost, kHostsUpdated };

/// What a worker brings to the next generation.
struct ReadyInfo {
  Cause cause = Cause::kStart;
  bool has_state = false;
  uint64_t revision = 0;
  Digest digest;
  std::vector<Offer> offers;      // first the backend for host memory
  std::vector<Setting> settings;  // that must be the same on all workers
  std::string backends;           // which it uses and why, for the driver's log
  bool feeds = false;             // it can be fed, and can feed others
};

/// What a worker has done since its process began. None of it ever falls.
struct Progress {
  uint64_t commits = 0;
  Duration useful{0};  // in training that a commit has kept
  Duration commit{0};  // the program has waited for commits
  uint64_t sync_bytes = 0;
};

struct Assignment {
  uint64_t generation = 0;
  uint64_t epoch = 0;
  int32_t rank = 0;
  int32_t root = 0;  // member that others sync from
  std::vector<Member> members;
  std::string reason;  // who was lost before it was formed; "" after a planned change
  int32_t spares = 0;  // of the members, those that had waited as such
};

/// Who feeds this worker while it waits for its place.
struct FeedInfo {
  uint64_t source = 0;
  std::string endpoint, key;
  Duration pause{0};  // that its joining may take for what it lacks then
};

struct AbortInfo {
  uint64_t generation = 0;
  std::string reason;
  int32_t rank = -1;
  Duration silence{0};
  Time received{};
};

struct HostsUpdate {
  uint64_t epoch = 0;
  bool interrupt = false;
  std::vector<std::string> added, removed;
};

/// Whether there is a driver. A session whose driver is gone goes on, and dials until there is one again.
struct DriverChange {
  bool lost = false;  // else: found again
  uint64_t term = 0;  // of the driver that is lost or found
  std::string message;
};

/// Called on the session's loop thread, no lock held. They must not block, nor call close.
struct SessionEvents {
  /// The current generation is lost. Never before join has given it out: an abort that comes earlier is
  /// held back until then (and may be told before join's caller has looked at the assignment).
  std::function<void(const AbortInfo&)> aborted;
  std::function<void(const HostsUpdate&)> hosts_updated;
  std::function<void(const DriverChange&)> driver_changed;
  std::function<void(uint64_t generation)> feed_wanted;  // others are to be fed: report_feed_offer answers
  std::function<void(const FeedInfo&)> feed;             // report_fed answers
  std::function<void(const Status& why)> ended;          // exactly once if start gave HVD_OK, at the latest
      // before close returns; never otherwise. No more generations; why says the reason:
      // HVD_OK (job finished with success), HVD_JOB_FAILED, HVD_REMOVED, HVD_REFUSED, HVD_DRIVER_LOST,
      // HVD_CLOSED
};

struct SessionConfig {
  std::string driver;  // host:port, or several, separated by commas
  std::string secret, job, host;
  uint64_t worker = 0;
  int32_t slot = 0;
  Duration connect_timeout = seconds(30);
  Duration driver_timeout = seconds(60);  // without a driver, or with one that is silent
  LoggerPtr logger;
};

/// Thread-safe. Blocking functions return at the latest at their deadline.
class Session {
 public:
  Session(SessionConfig config, SessionEvents events);
  ~Session();  // close(0)

  /// Connects, authenticates, says hello. HVD_DRIVER_LOST, HVD_REFUSED, HVD_TIMEOUT.
  Status start();

  /// Says that this worker is ready and waits for the next generation (newer than the last one).
  /// A spare, once the driver has said that it is one, waits on whatever the time-out, as long as the session
  /// lives. HVD_TIMEOUT names what the driver was waiting for as far as known; else the status of `ended`
  /// (HVD_REMOVED if the job has ended with success). Calling again after HVD_TIMEOUT is allowed.
  Status join(const ReadyInfo& ready, Duration timeout, Assignment* ret_assignment);

  /// What events.aborted was told of this generation, or nothing if it has not been. It may have come before
  /// join's caller was prepared for it: ask once after that.
  std::optional<AbortInfo> abort_of(uint64_t generation) const;

  /// The generation is connected and synced.
  void report_synced(uint64_t generation, uint64_t revision);
  /// The data plane of `generation` broke; the driver answers with an abort (events.aborted). unfit: no link
  /// broke, what `rank` offers does not fit what this worker has: the driver sends the newer of the two away.
  void report_failure(uint64_t generation, int32_t rank, const std::string& message, bool unfit = false);
  /// Of rank 0: an operation of `generation` has waited so long for the ranks `missing` (ascending). The
  /// driver warns, and evicts them where that is switched on. The text is cut to a few KiB.
  void report_stall(uint64_t generation, const std::string& text, const std::vector<int32_t>& missing,
                    Duration waited);
  /// Where others can be fed by this worker, until it leaves `generation`; or, without an endpoint, why they
  /// can't.
  void report_feed_offer(uint64_t generation, const std::string& endpoint, const std::string& key,
                         const std::string& reason);
  /// This worker may be given a place: it has `bytes`, and lacks some of the commit `revision`. `failure`: it
  /// was not fed.
  void report_fed(uint64_t source, uint64_t revision, uint64_t bytes, uint64_t lacking,
                  const std::string& failure);
  /// Newest (epoch, interrupt) known, as one number that grows with the epoch: epoch * 2 + interrupt.
  /// The maximum over all ranks tells every rank the same (contract 1).
  uint64_t epoch_word() const;
  /// Of the newest driver that welcomed this worker; 0 before, and of one from which no other takes over.
  uint64_t term() const;
  /// To be shown in heartbeats.
  void set_revision(uint64_t revision);
  /// The same, and when this worker is ready or done.
  void set_progress(const Progress& progress);
  /// How this worker came into `generation`, for the driver's records; nothing depends on it.
  void report_recovered(uint64_t generation, const hvd_recovery_info& recovery);

  /// Says done and waits for the job's end: HVD_OK, HVD_TIMEOUT, HVD_JOB_FAILED, ...
  Status finish(uint64_t revision, Duration timeout);
  /// Wants to go, in peace: at the next commit or check the members agree on it, and the driver ends this
  /// session (left). Past the time-out the driver takes it for lost. Any time after construction.
  void leaving(Duration timeout, const std::string& message);
  /// The session has ended since this worker went as it, or an operator, wished.
  bool left() const;
  /// Says that this worker goes without being done.
  void leave(const std::string& message);

  /// Key-value store of a generation. kv_get waits; HVD_TIMEOUT, HVD_PEER_LOST if the generation is lost.
  Status kv_set(uint64_t generation, const std::string& key, std::span<const uint8_t> value);
  Status kv_get(uint64_t generation, const std::string& key, Duration timeout,
                std::vector<uint8_t>* ret_value);

  /// Address of this machine on the route to the driver; valid after start.
  std::string local_address() const;

  /// Flushes for at most `linger`, then closes and joins the thread. Everything blocked returns HVD_CLOSED.
  /// Idempotent; from any thread except the session's own. After it every call gives HVD_CLOSED.
  void close(Duration linger);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace hvd::session

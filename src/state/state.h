// What must survive a change of generation: tensors, values, objects; commit, restore, sync.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/callback.h"
#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/status.h"
#include "collective/engine.h"
#include "hvd/shards.h"
#include "state/device_copies.h"
#include "state/feed.h"
#include "timeline/timeline.h"

namespace hvd::state {

struct SyncResult {
  uint64_t revision = 0;                        // of everybody afterwards
  int32_t root = 0;                             // rank whose state it is
  uint64_t sent_bytes = 0, received_bytes = 0;  // payload of this rank
};

struct Statistics {
  uint64_t commits = 0, restores = 0, syncs = 0, bytes = 0, sync_sent_bytes = 0, sync_received_bytes = 0;
  uint64_t written_bytes = 0;  // host memory that commits had to write: what had changed
  Duration last_commit{0};
  uint64_t fed_bytes = 0;                    // that the first sync found here already
  uint64_t shard_bytes = 0, copy_bytes = 0;  // of this rank's ranges, and of those that it holds for others
};

struct Settings {
  /// After a hidden commit the live values are compared with what it copied.
  bool check_commits = false;
  /// Every so many commits the ranks compare their digests; 0: never.
  uint64_t divergence_every = 0;
  /// In a sync this rank reads the memory of others on its machine, and they its memory.
  bool reads_others = true;
  enum class OnDivergence : uint8_t { kReport, kEvict, kStop };
  OnDivergence on_divergence = OnDivergence::kReport;
};

/// A variable that is not the same everywhere.
struct Diverged {
  std::vector<int32_t> ranks;  // who differs from more than half of all; all, without such a majority
  bool majority = false;
  bool kept = false;  // a rank's memory of shards differs from what was committed: mend() precedes the sync
  std::string text;   // one sentence, the same on every rank
};

/// What other ranks need to know to tell whether they agree.
struct Summary {
  bool has_state = false;  // it was part of a sync before
  uint64_t revision = 0;
  Digest digest;  // of the last commit: keys, specs and bytes
};

/// The driver's word of all ranks, or what all have agreed on, before they sync. A rank's own word counts as
/// far as that goes: nobody leads by claiming state (contract 5, 16).
struct Known {
  Known() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): as good as a list
  Known(std::vector<Summary> all, bool unchanged = true) : ranks(std::move(all)), still(unchanged) {}
  std::vector<Summary> ranks;  // by rank; empty: nothing is known
  bool still = false;          // all have what they had then: where they agree nothing is sent
};

/// The generation that this worker is in, and in which shards travel.
struct Generation {
  std::shared_ptr<void> use;             // holds the engine
  collective::Engine* engine = nullptr;  // not needed by a rank that is alone
  int32_t rank = 0;
  std::vector<std::string> hosts;  // by rank
  Duration timeout{0};             // of what is done in it
  std::vector<int32_t> leaving;    // ranks that may have no place in the next one, as far as this rank knows
  int32_t size() const { return static_cast<int32_t>(hosts.size()); }
};
/// Fails with why there is none: lost, closed. Any thread.
using GenerationSource = std::function<Status(Generation* ret_generation)>;

/// A shard as it is registered: see hvd_state_add_shard.
struct ShardInfo {
  collective::Tensor tensor;
  int64_t global_elements = 0, offset = 0;
  int32_t copies = 1, parity = 0;    // parity not 0: instead of copies
  Callback<hvd_reshard_fn> reshard;  // may be none
};

/// One thread at a time, but for revision(), summary() and statistics(). add and remove throw Error for bad
/// arguments. Keys have 1 to 255 bytes and are shared by all kinds. From within a save or load callback
/// everything but revision(), summary() and statistics() is refused with HVD_INVALID.
class State {
 public:
  /// copies: for tensors in device memory; none: they are refused with HVD_UNSUPPORTED.
  explicit State(LoggerPtr logger, TimelinePtr timeline = nullptr,
                 std::shared_ptr<DeviceCopies> copies = nullptr, const Settings& settings = {});
  ~State();

  void add_tensor(const std::string& key, const collective::Tensor& tensor);
  void add_value(const std::string& key, void* value, size_t size);
  /// detail: what all ranks must say of it alike, for example its options; up to 255 bytes.
  void add_object(const std::string& key, Callback<hvd_save_fn> save, Callback<hvd_load_fn> load,
                  const std::string& detail = {});
  /// `source` gives the generation, for this shard and for all that were added before. With shards save(),
  /// begin() and end() are collective over all ranks, and refresh() adds to a last commit what was registered
  /// since, and leaves it as it is.
  void add_shard(const std::string& key, ShardInfo info, GenerationSource source);
  /// See hvd_state_on_lost.
  void on_lost(Callback<hvd_lost_fn> lost);
  bool has_shards() const;
  /// Before a planned change of ranks, collective over all of them: what those that leave hold goes to
  /// others, so that these have all copies without them.
  Status hand_over();
  /// With shards, collective over all ranks that have not joined: whether another has, whose shards a commit
  /// would lack.
  Status has_anybody_joined(bool* ret_joined);
  void remove(const std::string& key);
  /// A tensor, a value or a shard has other memory from now on: see hvd_state_set_data. Throws as add does.
  void set_data(const std::string& key, void* data);

  /// Copies everything as revision + 1. On failure the last commit is untouched: HVD_CALLBACK_FAILED,
  /// HVD_INTERNAL (memory). Pieces of host memory that have not changed are not written again.
  ///
  /// With tensors in device memory, and after begin(), the copy is under way when this returns, and becomes
  /// the last commit when it has arrived, unless it fails or, with device memory, the generation is lost
  /// before. Everything but revision(), summary() and statistics() waits for that first: at most the time-out
  /// of `copies`, then HVD_TIMEOUT. HVD_PEER_LOST: the generation is lost already, and what devices hold
  /// counts for nothing. HVD_INTERNAL: also that the copy before it failed; nothing is copied then.
  Status save();
  /// The same as save(), but host memory is copied by a thread: until end() or whatever waits for it the
  /// program must not write tensors. Objects are saved, and values copied, when this returns. Needs host
  /// memory for two commits.
  Status begin();
  /// settle(), after begin(). HVD_INVALID: none was begun; or check_commits found that the program wrote a
  /// tensor meanwhile, which the message names.
  Status end();
  bool begun() const;
  /// Copies without counting a revision: used for the first sync, before any commit.
  Status refresh();
  /// Puts the last commit back (contract 4). Keys added since are left alone. Objects come first: if a load
  /// callback fails (HVD_CALLBACK_FAILED), tensors and values stay as they are. HVD_INVALID without a commit.
  /// Device memory is written when this returns. HVD_INTERNAL: it can't be; or all is put back, and a commit
  /// after that which it was put back from had failed.
  /// `shards_too` false: shards are left to a sync, which has to follow, and mostly writes other ranges.
  Status restore(bool shards_too = true);
  /// Waits for a commit that is under way. If that was not to be, once: HVD_INTERNAL, its copy failed;
  /// HVD_PEER_LOST, the generation was lost before it had arrived. HVD_TIMEOUT: it is still under way.
  Status settle();
  /// Waits for copies that are under way, whatever becomes of them. HVD_TIMEOUT: they still are. Any thread,
  /// while none is in another function.
  Status rest();
  bool has_commit() const;

  /// Counts a commit that is under way.
  uint64_t revision() const;
  /// Of the last commit. With a key added since, the digest equals nobody's, so that the next sync compares.
  Summary summary() const;
  Statistics statistics() const;

  /// Collective over all ranks of the engine's generation: makes everybody's live values and last commit
  /// equal to the root's (contract 5, 6). `known`: summaries of all ranks by rank if the assignment brought
  /// them (empty otherwise): where they agree nothing at all is sent. Live values must equal the last commit,
  /// and `known` what every rank has now; otherwise `refresh_first` takes a copy as refresh() does. Keys that
  /// the last commit does not cover are copied in any case. A copy that fails is told to all. On failure last
  /// commit and live values are as they were, but undefined on a rank without state where others have some:
  /// HVD_MISMATCH if keys, kinds, dtypes or shapes differ (the same message on every rank), HVD_PEER_LOST,
  /// HVD_TIMEOUT, HVD_CALLBACK_FAILED. `timeout` begins anew after callbacks: the program's time is its own,
  /// and others wait for a rank that is in one as long as for one that does not call. Objects' load callbacks
  /// run when everything has arrived; if one fails, those that ran are given the last commit again.
  Status sync(collective::Engine& engine, int32_t rank, int32_t size, const Known& known, Duration timeout,
              SyncResult* ret_result, bool refresh_first = false);

  /// Collective over all ranks that have not joined, after a commit that has arrived: whose digests of it
  /// differ, and in what. 40 bytes a rank, and 24 a variable where they do. HVD_MISMATCH: they commit
  /// different revisions. With shards each rank also reads again what it keeps of them, for itself and for
  /// others.
  Status find_diverged(collective::Engine& engine, int32_t rank, Duration timeout,
                       std::vector<Diverged>* ret_diverged);
  /// The last commit, for those who feed others with it. Any thread; it outlives the state, and is closed
  /// then.
  std::shared_ptr<FeedSource> feed() const;
  /// What this worker was fed before it had a place, for the first sync. Before anything else is done with
  /// the state.
  void take_fed(FeedCache cache);
  /// In the next sync this state counts as a newcomer's: it takes the others', and is nobody's root.
  void disown();
  /// Corrects or drops what find_diverged has found wrong of the shards that this rank keeps. The next sync
  /// makes again what was dropped.
  void mend();

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace hvd::state

// What state.cc (registry, commit, restore), overlap.cc (commits under way) and sync.cc share.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "state/copy_thread.h"
#include "state/feed.h"
#include "state/shards.h"
#include "state/state.h"
#include "state/variable.h"

namespace hvd::state {

struct State::Impl {
  /// While it lives a callback of the program runs.
  class InCallback {
   public:
    explicit InCallback(Impl& state) : state_(state) { state_.in_callback = true; }
    InCallback(const InCallback&) = delete;
    InCallback& operator=(const InCallback&) = delete;
    ~InCallback() { state_.in_callback = false; }

   private:
    Impl& state_;
  };

  Impl(LoggerPtr l, TimelinePtr t, std::shared_ptr<DeviceCopies> c, const Settings& settings)
      : logger(std::move(l)),
        timeline(std::move(t)),
        copies(std::move(c)),
        check_live(settings.check_commits),
        reads_others(settings.reads_others),
        feed(std::make_shared<FeedSource>(settings.reads_others)),
        shards(settings.reads_others, logger, copies) {}
  ~Impl();

  // Used by one thread at a time. In the order of keys, which is the same on every rank.
  std::map<std::string, Variable> variables;
  std::vector<Digest> scratch;  // room for total(): a commit allocates nothing
  bool has_commit = false;
  bool in_callback = false;  // a save or load callback runs: the registry must stand still
  const LoggerPtr logger;
  const TimelinePtr timeline;

  // Commits under way. While the thread has a job the variables are its.
  const std::shared_ptr<DeviceCopies> copies;  // may be none
  size_t on_device = 0;                        // variables
  std::unique_ptr<CopyThread> thread;          // from the first copy on
  std::atomic<Time> placed_by{Time()};         // while the thread places shards: when that is over
  std::vector<PieceCopy> pieces;               // of a copy, kept so that a commit allocates nothing
  std::vector<PieceCopy> staged;               // likewise, of what devices' copies to the host bring
  std::shared_ptr<SharedCopy> hidden_copy;     // of a hidden commit; guarded by mutex
  const bool check_live;                       // option check_commits
  const bool reads_others;                     // option local
  bool begun = false;                          // hidden, and its end was not called

  // Feeding (feed.h).
  const std::shared_ptr<FeedSource> feed;
  std::map<std::string, FeedCache::Item> fed;  // what this worker was fed, until its first sync

  // Shards. While the copy thread has a job they are its.
  Shards shards;
  GenerationSource generation_source;
  Callback<hvd_lost_fn> lost;
  uint64_t prepared = 0;  // revision of a commit that lacks at most its seal, in `next`; 0: none

  // What other threads may ask for.
  mutable std::mutex mutex;
  Summary summary;        // guarded by mutex
  Statistics statistics;  // guarded by mutex
  bool pending = false;   // a commit that will count is under way; guarded by mutex
  Status failure;         // of a commit that was under way, until it is told; guarded by mutex

  void add(Spec spec, const collective::Tensor& live, Callback<hvd_save_fn> save, Callback<hvd_load_fn> load);
  void remove(const std::string& key);
  void set_data(const std::string& key, void* data);
  /// Where the variable of that key is. Throws Error(HVD_INVALID).
  std::map<std::string, Variable>::iterator find(const std::string& key);
  /// Throws Error(HVD_UNSUPPORTED) if nobody copies this kind of memory.
  void check_served(const std::string& key, hvd_memory memory) const;

  /// save(), begin() and refresh().
  Status copy(bool counted, bool hidden = false);
  /// `shards_too`: else a sync has to follow, which writes them.
  Status restore(bool shards_too = true);
  /// Its part in device memory, of shards what `staged` puts back.
  Status restore_devices();
  Status sync(collective::Engine& engine, int32_t rank, int32_t size, const Known& known, Duration timeout,
              SyncResult* ret_result, bool refresh_first);

  // sharded.cc
  void add_shard(const std::string& key, ShardInfo info, GenerationSource source);
  /// What has failed on this rank alone fails on all.
  Status refuse(const Status& why);
  /// The commit that was prepared becomes the last one if somebody has sealed it. In a sync, when all know
  /// `revision`.
  Status promote(uint64_t revision);
  /// After everything else. fresh: nobody has state. The time-out begins when the program has its ranges.
  Status sync_shards(collective::Engine& engine, uint64_t revision, bool fresh, Duration timeout,
                     SyncResult* result, bool* ret_lost);
  Status reload(const Status& why, uint64_t revision);
  Status hand_over();
  Status has_anybody_joined(bool* ret_joined);
  /// What was copied becomes the last commit.
  void take_next();

  Status sync_once(collective::Engine& engine, int32_t rank, int32_t size, const std::vector<Summary>& known,
                   Duration timeout, const Status& local, SyncResult* result, bool* ret_lost);

  /// Whether others have state and this rank has none: nothing of what it has found counts.
  bool comes_late(const std::vector<Summary>& known, int32_t rank) const;
  /// What this worker was fed becomes the copy of each variable that it fits.
  void take_fed();

  // cover.cc
  /// The last commit gains the live values of keys that it does not cover. On failure it is as it was.
  Status cover();
  /// New keys' live values come to host memory.
  Status take_from_devices();
  Status fetch(const std::vector<DeviceRange>& ranges);

  // divergence.cc
  Status find_diverged(collective::Engine& engine, int32_t rank, Duration timeout,
                       std::vector<Diverged>* ret_diverged);
  Status compare_variables(collective::Engine& engine, int32_t rank, Time deadline,
                           std::vector<Diverged>* ret_diverged);
  Status compare_shards(Time deadline, std::vector<Diverged>* ret_diverged);
  void disown();

  // overlap.cc
  struct Commit;
  using MemoryOf = std::function<const Memory*(const Variable&)>;
  Status copy_overlapped(bool counted, bool hidden);
  Status begin_copies(const Commit& commit, bool hidden);
  /// The program did not write what it had promised not to write: option check_commits.
  Status check_promise();
  Status end();
  Status make_room();
  /// Memory for `copy` of a variable: an object's after its save callback. What of it has no pages yet is
  /// appended to `fresh`.
  Status make_room(Variable& variable, Copy* copy, std::vector<std::span<uint8_t>>* fresh) const;
  /// Takes the digests of host memory's part, once the second set of buffers has it.
  void host_part_copied(uint64_t written);
  /// Where variables lie that are on devices, with the host memory that is given for each (NULL: not this
  /// one).
  std::vector<DeviceRange> device_ranges(const MemoryOf& memory_of) const;
  /// Starts copies to or from devices. On failure some may be under way.
  Status start(DeviceCopies::Way way, const std::vector<DeviceRange>& ranges,
               std::vector<DeviceCopies::Ticket>* tickets);
  /// In the thread: all copies of a commit are done, or failed.
  void arrived(Status status, const Commit& commit) noexcept;
  Status digest_arrived(const Commit& commit);
  /// Writes device memory and waits until it is written. `keep` stays until the copies are done, however long
  /// it takes.
  Status put_back(const std::vector<DeviceRange>& ranges, std::shared_ptr<void> keep = nullptr);
  /// Devices gain what a restore or sync has written of their shards.
  Status put_back_shards();
  /// Copies to or from devices, and waits for that. `keep` as above.
  Status carry(DeviceCopies::Way way, const std::vector<DeviceRange>& ranges,
               std::shared_ptr<void> keep = nullptr);
  CopyThread& copy_thread();
  /// The thread has no job: HVD_OK, or HVD_TIMEOUT.
  Status rest();
  Status settle();
  uint64_t revision() const;

  bool uses_devices() const { return on_device > 0 || shards.on_device(); }
  /// Whether the last commit covers every key.
  bool complete() const;
  /// Of keys, specs and bytes of the last commit, given each variable's digest in the order of keys.
  Digest total(const std::vector<Digest>& digests);
  Digest total();
  uint64_t committed_bytes();
  /// HVD_INVALID if called from within a callback of this state.
  Status not_in_callback(const char* function) const;
  Status run_save(Variable& variable) {
    const InCallback inside(*this);
    return variable.run_save();
  }

  /// Calls fn, which returns a Status, and puts it on the timeline with how it went.
  template <class Function>
  Status recorded(const char* what, Function fn) {
    if (!is_on(timeline)) return fn();
    const Time began = now();
    Status status = fn();
    const Time ended = now();
    int64_t revision = 0, bytes = 0;
    {
      std::lock_guard lock(mutex);
      revision = static_cast<int64_t>(summary.revision + (pending ? 1 : 0));
      bytes = static_cast<int64_t>(statistics.bytes);
    }
    timeline->slice(TimelineRow::kState, what, began, ended,
                    {{"revision", revision}, {"bytes", bytes}, {"status", status_name(status.code)}});
    return status;
  }

  /// Runs the load callbacks of objects on the copy that `copy_of` gives for each (NULL: not this one). If
  /// one fails and `undo` is set, those that have run are given their part of the last commit again.
  template <class CopyOf>
  Status load_objects(CopyOf copy_of, bool undo) {
    Status status;
    std::vector<Variable*> loaded;
    const auto loads = [&](auto& entry) {
      return entry.second.is_object() && copy_of(entry.second) != nullptr;
    };
    loaded.reserve(static_cast<size_t>(std::count_if(variables.begin(), variables.end(), loads)));
    const InCallback inside(*this);
    for (auto& [key, variable] : variables) {
      Copy* const source = variable.is_object() ? copy_of(variable) : nullptr;
      if (source == nullptr) continue;
      status = variable.run_load(variable.data(*source));
      loaded.push_back(&variable);
      if (status.ok()) continue;
      for (Variable* done : loaded) {
        if (undo && done->committed) static_cast<void>(done->run_load(done->committed_bytes()));
      }
      break;
    }
    return status;
  }
};

/// While it lives nobody reads the last commit, which may change.
class FeedPause {
 public:
  explicit FeedPause(State::Impl& state);
  FeedPause(const FeedPause&) = delete;
  FeedPause& operator=(const FeedPause&) = delete;
  ~FeedPause();

 private:
  State::Impl& state_;
};

}  // namespace hvd::state

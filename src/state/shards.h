// Sharded keys of a state: each rank's range of flat global vectors, with copies in the commit memory of
// other ranks.
//
// What a rank commits of all its shards is one parcel: a block of memory that goes to its holders as a whole.
// Holders on the same machine map it: its pages are theirs as well, and stay when their owner goes. They let
// go of it when they let go of that commit, and until then its owner does not write there again.
// A commit has two phases. Parcels are copied and placed beside those of the last commit; then all ranks tell
// each other that they have placed theirs, which seals it, and only then the older ones are let go of. A rank
// that is cut off before it has heard of the seal keeps both. The next sync asks whether anybody had sealed:
// then all of them had placed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
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
#include "state/memory.h"
#include "state/parity.h"
#include "state/pieces.h"
#include "state/shard_plan.h"
#include "state/shard_tables.h"
#include "state/state.h"
#include "state/variable.h"

namespace hvd::state {

class Flight;
struct ShardReads;
struct ShardCheck;

inline constexpr int32_t kMostCopies = 16;
inline constexpr int32_t kLeastParity = 2, kMostParity = 64;
inline constexpr int32_t kNobody = -2;        // whose shards are in a sum
inline constexpr uint64_t kWindow = 1 << 20;  // of parity on its way
/// What is shorter is not worth a look into another's memory.
inline constexpr uint64_t kReadFrom = 1 << 20;

/// Of a shard in device memory: where it is, and host memory that stands for it.
struct ShardOnDevice {
  hvd_memory memory = HVD_MEMORY_HOST;
  int32_t number = 0;
  void* stream = nullptr;  // borrowed
  void* data = nullptr;    // borrowed
  Memory stage;
  bool behind = false;  // it lacks what was written into `stage`
};

/// One key on this rank.
struct Shard {
  std::string key;
  hvd_dtype dtype = 0;
  size_t element_bytes = 0;
  int64_t elements = 0;  // of the whole vector
  int32_t copies = 1;
  int32_t parity = 0;  // not 0: instead of copies, a block of parity for so many shards
  Callback<hvd_reshard_fn> reshard;
  void* live = nullptr;  // borrowed; of a shard on a device: what stands for it
  std::optional<ShardOnDevice> device;
  int64_t begin = 0, end = 0;
  int32_t rank = -1, size = -1;  // of this worker when it got the range
  bool stale = false;            // `live` is not what the last commit has

  size_t bytes() const { return static_cast<size_t>(end - begin) * element_bytes; }
  /// Whether there is host memory for all of it.
  bool staged() const { return !device || device->stage.size() >= bytes(); }
  /// `live` for a writer.
  uint8_t* written() {
    if (device) device->behind = true;
    return static_cast<uint8_t*>(live);
  }
  Spec spec() const;
};

/// Bytes of one range within a parcel.
struct Segment {
  ShardRange range;
  size_t at = 0, bytes = 0;
  Digest digest;
  Pieces pieces;  // of what this rank copied itself
};

struct Parcel {
  int32_t owner = -1;
  std::vector<Segment> segments;
  Memory memory;  // the owner's, if it is mapped
  uint8_t* data(const Segment& segment) const { return memory.data() + segment.at; }
};
using ParcelPtr = std::shared_ptr<Parcel>;

/// Where a range lies that one of the parcels has as a whole; NULL: in none.
struct ShardSpot {
  Parcel* parcel = nullptr;
  Segment* segment = nullptr;
  uint8_t* data = nullptr;
};
ShardSpot find(const std::vector<ParcelPtr>& parcels, const ShardRange& range, size_t element_bytes);

/// Whether these are its segments, where they lie.
bool holds(const Parcel& parcel, const std::vector<Segment>& segments);

/// In the order of parcels and their segments.
std::vector<ShardRange> ranges_in(const std::vector<ParcelPtr>& parcels);

/// Appends copies of a range to `to`, out of what parcels have of it. False: they do not have all of it.
bool append_range(const std::vector<ParcelPtr>& parcels, const ShardRange& range, size_t element_bytes,
                  uint8_t* to, std::vector<PieceCopy>* pieces);

/// Who had what when a commit was sealed, for those who ask when it is lost.
struct ShardLayout {
  std::vector<std::vector<ShardRange>> own;  // by rank and key
  std::vector<std::vector<Digest>> digests;  // of these ranges; empty: they are not known
  std::vector<std::vector<int32_t>> holders;
  std::map<int32_t, std::vector<std::vector<int32_t>>> groups;  // by parity: ranks of each, ascending
  std::vector<std::string> hosts;

  /// Of exactly that range. NULL: it is not known.
  const Digest* digest_of(const ShardRange& range) const;
};

/// This rank's block of its group's parity.
struct Parity {
  ParityBlock block;
  ParcelPtr sum;  // one segment, which is no range
};

/// One thread at a time: the state's, or its copy thread while that has a job.
class Shards {
 public:
  /// reads_others: this rank reads the memory of others on its machine, and they its memory.
  /// copies: of shards in device memory; may be none.
  explicit Shards(bool reads_others, LoggerPtr logger = nullptr,
                  std::shared_ptr<DeviceCopies> copies = nullptr)
      : reads_others_(reads_others), logger_(std::move(logger)), copies_(std::move(copies)) {}
  bool empty() const { return shards_.empty(); }
  /// Throws Error(HVD_INVALID), or of a shard in device memory what its backend says. `place`: of this worker
  /// now.
  void add(Shard shard, const Generation& place);
  void remove(const std::string& key);
  /// This rank's range of that key, which there is, has other memory.
  void set_data(const std::string& key, void* data);
  /// Of this rank's range of that key, which there is.
  size_t bytes(const std::string& key) { return where(key)->bytes(); }
  uint64_t own_bytes() const;
  uint64_t held_bytes() const;

  // ---- Device memory (shard_device.cc) ----
  bool on_device() const;
  /// Host memory for all that lack it: where a sync had none for a new range.
  Status stage();
  using OfShard = std::function<bool(const Shard&)>;
  /// Where shards lie that are on devices and which `wanted` takes.
  std::vector<DeviceRange> device_ranges(const OfShard& wanted) const;
  /// Where the device lacks what a restore or sync has written.
  std::vector<DeviceRange> behind() const;
  /// It lacks that no more.
  void caught_up();
  /// A device may still read and write what stands for it.
  void leak() noexcept;

  // ---- Commit (shard_commit.cc) ----
  /// Appends copies of this rank's shards, to the parcel of the commit that is begun in `generation`.
  /// `staged`: of those on devices, whose copies to the host have to come first. HVD_INTERNAL: no memory.
  Status begin(const Generation& generation, std::vector<PieceCopy>* pieces, std::vector<PieceCopy>* staged);
  /// Collective over all ranks of `generation`: places what was copied, and seals it. `local`: that this rank
  /// has failed before, which all of them are told, and fail alike.
  Status place(const Generation& generation, uint64_t revision, const Status& local);
  /// The commit that place() has prepared is complete on this rank: it lacks the seal at most.
  bool prepared() const { return next_.whole; }
  /// It becomes the last one.
  void adopt();

  // ---- Restore ----
  /// Appends what puts the last commit back, `staged` into what stands for devices. Keys whose range has
  /// changed since are left to the sync.
  void append_restore(std::vector<PieceCopy>* pieces, std::vector<PieceCopy>* staged);
  /// All of it is left to the sync, which has to follow.
  void leave_restore();

  // ---- Sync (shard_fit.cc, shard_sync.cc, shard_leave.cc) ----
  /// This rank's ranges in a generation: asks the program where its place has changed. Calls its callbacks.
  Status fit(const Generation& generation);
  /// Live values, devices' as they were copied last, as the parcel of `revision`. HVD_INTERNAL: no memory.
  Status take_live(const Generation& generation, uint64_t revision);
  /// The commit of `revision`, and one that is prepared, gain the live values of these keys, which they lack.
  /// HVD_INTERNAL: no memory.
  Status cover(const std::vector<std::string>& keys, uint64_t revision);
  /// Collective. Gathers every range of `revision` from who has it, with copies, and writes live memory.
  /// `local` as above. *ret_lost: HVD_JOB_FAILED since ranges are lost, and every rank says that it can load
  /// them from elsewhere.
  Status sync(const Generation& generation, collective::Engine& engine, Time deadline, uint64_t revision,
              bool can_reload, const Status& local, SyncResult* result, bool* ret_lost);
  /// Collective. What ranks that leave hold goes to others, so that copies and parity are whole without them.
  Status hand_over(const Generation& generation);
  /// No range is known any more.
  void forget();

  // ---- Divergence (shard_rot.cc) ----
  struct Rot {
    int32_t rank = 0;
    std::string what;  // "what rank 2 now has of elements 0 to 9 of state key 'm'"
  };
  /// Collective, after a commit. Finds what ranks keep of it and that differs from what was committed: all
  /// ranks get the same list.
  Status find_rot(const Generation& generation, Time deadline, std::vector<Rot>* ret_rot);
  /// Corrects what find_rot has found on this rank. It copies own ranges again if the live values are still
  /// those of the commit, and drops the rest: a sync has to follow, which makes that again.
  void mend_rot();

 private:
  struct Rotten {
    int32_t owner = 0;
    uint32_t key = 0;
    std::optional<size_t> block;  // of parity: of sealed_
  };
  std::vector<Rotten> read_again(const ShardLayout& layout) const;
  Status stage(Shard* shard) const;
  /// Where the shard of that key is, or is to be.
  std::vector<Shard>::iterator where(const std::string& key);

  struct Set {
    uint64_t revision = 0;
    bool whole = false;
    ParcelPtr own;  // NULL if taken: this rank's ranges may lie within several that it holds
    std::vector<ParcelPtr> held;
    std::vector<Parity> parity;
    std::shared_ptr<const ShardLayout> layout;
    bool taken = false;       // by take_over(): parcels hold more than this rank is to have
    uint64_t for_others = 0;  // of that, bytes
  };
  using Ranges = std::vector<std::vector<ShardRange>>;

  struct Read {
    const ParcelPlace* from;
    int32_t owner;
    uint8_t* to;
    size_t at, size;  // within the parcel
  };

  /// What a rank can do with the parcel of another.
  enum : uint8_t { kReads = 1, kMaps = 2, kHasNoRoom = 4 };  // the last one of its own

  Status place_all(const Generation& generation, uint64_t revision, const Status& local);
  Status distribute(const Generation& generation, Time deadline);
  void carry(int32_t owner, const Parcel& parcel, const std::vector<int32_t>& holders, int32_t rank,
             Flight* flight, std::vector<Read>* reads) const;
  Status seal_placed(const Generation& generation, Time deadline);
  void map_parcels(const ShardLayout& layout, int32_t rank);
  std::vector<ParcelPtr> room_for_copies(const ShardLayout& layout, int32_t rank);
  uint64_t longest(const ShardLayout& layout) const;
  Status agree_on_reads(const ShardLayout& layout, int32_t rank, std::optional<bool> has_room,
                        collective::Engine& engine, Time deadline);
  bool shares(const Generation& generation) const;
  /// Whose parcel `place` is, as its holder has it. Empty memory: it can't be mapped.
  Memory mapped(const MemoryPlace& place, const std::vector<Segment>& segments) const;
  void let_go(ParcelPtr parcel) noexcept;
  static Status read_parcels(const std::vector<Read>& reads);
  std::vector<ParcelPtr> gather_usable(uint64_t revision);
  Status tell_lost(const std::vector<ShardRange>& lost, uint64_t revision, int32_t size,
                   collective::Engine& engine, Time deadline);
  Ranges wanted(const ShardLayout& layout, const std::vector<std::vector<uint8_t>>& maps) const;
  void spare(Set* set);
  // Filling new parcels (shard_fill.cc).
  Status agree_on_moves(const std::vector<ShardMove>& moves, const Ranges& has, const Set& next,
                        const std::vector<ParcelPtr>& bag, int32_t rank, collective::Engine& engine,
                        Time deadline, ShardReads* ret_reads);
  Status tell_filled(Set* next, const std::vector<ParcelPtr>& mapped, int32_t rank,
                     collective::Engine& engine, Time deadline) const;
  Status move(const std::vector<ShardMove>& moves, const Ranges& has, const ShardReads& reads,
              const std::vector<ParcelPtr>& bag, const std::vector<ParcelPtr>& fresh, int32_t rank,
              const Parcel* own, collective::Engine& engine, Time deadline, SyncResult* result);
  /// shard_take.cc: instead of a move, if all ranks can map what they are to have. *ret_done: they could.
  /// `checked`: the plan of which all sources are known to be good.
  Status take_over(const ShardTables& tables, const ShardPlan& checked, const Ranges& wants, Set next,
                   const std::vector<ParcelPtr>& all_parcels, int32_t rank, collective::Engine& engine,
                   Time deadline, SyncResult* result, bool* ret_done);
  bool may_take_over(const Generation& generation) const;
  void adopt_taken();
  // shard_leave.cc
  struct Handover;
  Status plan_taking(const Generation& generation, Time deadline, Handover* handover);
  Status take_held(const Generation& generation, Time deadline, const Handover& handover, int32_t* altered);
  Status hand_over_parity(const Generation& generation, const std::vector<bool>& leaves, Time deadline);
  /// A parcel of these ranges. Throws std::bad_alloc. NULL: of none.
  ParcelPtr room_for(const std::vector<ShardRange>& ranges);

  // What is taken of a rank is as it was committed (shard_check.cc).
  /// Collective over all ranks. Holds what is to be taken against the digests of the commit. What differs is
  /// named, and gone from what its rank has: then *ret_dropped, and another plan is due.
  Status check_uses(ShardCheck* check, int32_t rank, collective::Engine& engine, Time deadline,
                    ShardTables* tables, std::vector<ParcelPtr>* bag, bool* ret_dropped);
  std::vector<uint8_t> checked(const ShardCheck& check, int32_t rank,
                               const std::vector<ParcelPtr>& bag) const;
  void note(ShardRange range, const std::string& what, bool log);
  /// Collective: what each rank has, and its own ranges. `mine`: with this sync's revision; `bag`: what this
  /// rank has.
  Status exchange_tables(const Generation& generation, ShardHead mine, const Status& local,
                         const std::vector<ParcelPtr>& bag, collective::Engine& engine, Time deadline,
                         ShardTables* ret_tables) const;
  /// Collective: no range is missing any more of which another rank has a good copy, or parity.
  Status plan_sync(const Ranges& wants, bool own_too, uint64_t revision, int32_t rank,
                   collective::Engine& engine, Time deadline, SyncResult* result, ShardTables* tables,
                   std::vector<ParcelPtr>* bag, ShardPlan* ret_plan);
  /// Collective: *next, which has its layout, gains its parcels. *ret_own_is_new: that of this rank's own
  /// ranges was made for it.
  Status fill(const Generation& generation, const ShardTables& tables, ShardPlan plan,
              const std::vector<ParcelPtr>& bag, collective::Engine& engine, Time deadline,
              SyncResult* result, Set* next, bool* ret_own_is_new);
  Status seal(collective::Engine& engine, Time deadline, int32_t size);
  void write_own(bool own_is_new);

  // Parity (shard_parity.cc).
  /// The blocks that `rank` is to have.
  std::vector<ParityBlock> blocks_of(const ShardLayout& layout, int32_t rank) const;
  std::vector<std::vector<ShardRange>> stripes(const ShardLayout& layout, const std::vector<int32_t>& group,
                                               int32_t parity) const;
  /// Collective over the members of each group. Makes the blocks that this rank is to have, from what lies in
  /// the members' own parcels; not those that a rank has already: by rank, NULL: nobody has any. `places_`
  /// and `reads_` are set.
  Status make_parity(Set* next, int32_t rank, const std::vector<std::vector<Digest>>* has,
                     collective::Engine& engine, Time deadline, SyncResult* result);
  /// Whether parity travels by the backend, so that members of a group wait for each other.
  bool sends_parity(const ShardLayout& layout) const;
  /// Collective: where each rank's own parcel of `next` is, and who reads whose.
  Status tell_places(const Set& next, int32_t rank, collective::Engine& engine, Time deadline);
  /// Collective: which blocks of parity each rank says that it has; this one says `mine`.
  Status gather_parity(const std::vector<ParityBlock>& mine, int32_t rank, int32_t size,
                       collective::Engine& engine, Time deadline,
                       std::vector<std::vector<ParityBlock>>* ret_blocks) const;
  /// Collective: makes again what is lost, as far as parity can. *tables, *bag: gain that; *lost: what is
  /// left. *ret_dropped as of check_uses.
  Status repair(int32_t rank, int32_t size, collective::Engine& engine, Time deadline, SyncResult* result,
                ShardTables* tables, std::vector<ParcelPtr>* bag, std::vector<ShardRange>* lost,
                bool* ret_dropped);

  std::vector<uint64_t> element_bytes() const;
  std::vector<int64_t> lengths() const;  // elements of each key
  std::vector<uint8_t> specs() const;
  /// Collective: what `other` has registered otherwise than rank 0.
  Status name_mismatch(const Generation& generation, Time deadline, size_t other);
  ShardLayout layout_of(Ranges own, const Generation& generation) const;
  int32_t most_copies() const;
  /// Segments of a parcel of these ranges, of keys with more than `copies` copies: those with most come
  /// first, so that what each holder gets is the front of it. Keys of one parity lie beside each other: that
  /// is the stripe.
  std::vector<Segment> segments(const std::vector<ShardRange>& ranges, int32_t copies) const;
  /// A parcel of these segments, from what was let go of if it fits. `shared`: that others may map, if there
  /// is such memory. Throws std::bad_alloc.
  ParcelPtr parcel(std::vector<Segment> segments, int32_t owner, bool shared = false);
  Memory remade(size_t total, bool shared);
  void await_spare(size_t total);
  std::vector<ShardRange> ranges() const;
  /// A key was added or taken away: number(before) is what it is now; none: it is gone.
  void renumber(const std::function<std::optional<uint32_t>(uint32_t)>& number);
  std::string told(const ShardRange& range) const;
  static constexpr const char* kLater = "the key was registered after that commit";
  std::string who_had(const ShardRange& range) const;

  const bool reads_others_;
  const LoggerPtr logger_;
  const std::shared_ptr<DeviceCopies> copies_;
  std::vector<ParcelPlace> places_;          // of the commit that is placed, by rank
  std::vector<std::vector<uint8_t>> reads_;  // by rank, what it does with whose parcel; empty: nothing
  ParcelPtr window_;                         // for parity of the commit that is placed: room for one
  std::vector<Memory> maps_;                 // by owner, of the commit that is placed; empty: not mapped
  std::vector<Shard> shards_;                // in the order of keys
  std::vector<uint32_t> order_;              // keys by falling number of copies, then by parity
  Set sealed_, next_;
  std::vector<ParcelPtr> spare_;
  std::vector<std::pair<ShardRange, std::string>> corrupt_;  // what was found so since the last commit
  std::vector<Rotten> rotten_;                               // by find_rot, until mend_rot
};

}  // namespace hvd::state

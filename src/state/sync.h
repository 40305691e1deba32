// One sync of a state, for sync.cc and sync_pieces.cc (what the ranks tell each other) and sync_move.cc (what
// they move).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "state/flight.h"
#include "state/impl.h"
#include "state/reach.h"
#include "state/sync_plan.h"

namespace hvd::state {

class Sync {
 public:
  /// known: of each rank, or of none.
  Sync(State::Impl& state, collective::Engine& engine, int32_t rank, int32_t size,
       const std::vector<Summary>& known, Duration timeout)
      : state_(state),
        engine_(engine),
        rank_(rank),
        size_(static_cast<size_t>(size)),
        known_(known),
        timeout_(timeout),
        deadline_(now() + timeout) {
    for (auto& [key, variable] : state_.variables) variables_.push_back(&variable);
  }

  Status run(const Status& local);
  SyncResult result;
  bool lost = false;  // ranges of shards, which the program can load from elsewhere

 private:
  /// What each rank says first. Plain words: members of a job share one byte order.
  struct Head {
    static constexpr uint64_t kHasState = 1, kFailed = 2;
    uint64_t flags = 0;
    uint64_t revision = 0;
    Digest digest;
    Digest spec;
    uint64_t spec_bytes = 0;
  };
  static_assert(sizeof(Head) == 56 && sizeof(Version) == 24, "no padding on the wire");

  Status gather(const char* name, const void* data, size_t size, std::vector<uint8_t>* all) {
    return state::gather(engine_, deadline_, name, data, size, all);
  }
  /// Rank 0 hands round what all say: what it says of this rank would decide what this rank reads and sends.
  static Status echoed(const char* what, const void* said, const void* got, size_t size);
  Status exchange_heads(const Status& local);
  Status name_mismatch(size_t other);
  Status exchange_versions();

  // sync_pieces.cc
  struct Split;
  /// Who has which pieces of what somebody lacks, and whose memory each rank can read.
  Status exchange_pieces();
  Split split_lacked();
  Status exchange_reach(const Split& split, std::vector<uint8_t>* ret_all);
  std::vector<uint8_t> row_of(const Split& split, const uint8_t* wanted) const;
  void take_rows(const Split& split, const std::vector<uint8_t>& rows);
  /// Whether all ranks are done with what others read of their memory.
  Status finish_reading(bool failed);

  // sync_move.cc
  Status prepare();
  Status transfer();
  Status verify();
  Status apply_on_devices();
  Status apply();
  uint64_t append_fed(size_t variable, std::vector<PieceCopy>* list);
  void append_staged(size_t variable, const Copy& copy, std::vector<PieceCopy>* list);
  void adopt();

  /// A host tensor that this rank gets into its live memory and its commit at once, since it has no state to
  /// lose.
  bool in_place(const Variable& variable) const {
    return in_place_ && !variable.is_object() && !variable.on_device() && variable.bytes >= kPackBelow;
  }
  uint8_t* place_of(const Part& part);
  /// Digests what has arrived, and takes it into the commit where it arrived in place.
  void append_arrived(const Part& part, std::vector<PieceCopy>* list);
  Status read_directly(const std::vector<const Transfer*>& transfers);
  bool lacks(size_t variable) const {
    const auto& pieces = holdings_.has[static_cast<size_t>(rank_)][variable];
    return std::find(pieces.begin(), pieces.end(), false) != pieces.end();
  }
  bool lacks_all(size_t variable) const {
    const auto& pieces = holdings_.has[static_cast<size_t>(rank_)][variable];
    return std::find(pieces.begin(), pieces.end(), true) == pieces.end();
  }
  bool receives(const Transfer& t) const {
    return std::binary_search(t.receivers.begin(), t.receivers.end(), rank_);
  }
  const std::vector<Version>& wanted() const { return versions_[static_cast<size_t>(result.root)]; }

  State::Impl& state_;
  collective::Engine& engine_;
  const int32_t rank_;
  const size_t size_;
  const std::vector<Summary>& known_;
  const Duration timeout_;
  Time deadline_;  // of what the ranks do until the program's callbacks run: their time is the program's
  std::vector<Variable*> variables_;  // in the order of keys
  std::vector<uint8_t> specs_;
  std::vector<Head> heads_;                     // by rank
  std::vector<std::vector<Version>> versions_;  // by rank and variable
  Holdings holdings_;
  std::vector<Transfer> plan_;
  std::vector<Reach> reach_;                      // by rank
  std::vector<std::vector<uint64_t>> addresses_;  // by rank and variable: of its commit; 0: not told
  bool in_place_ = false;
  bool fresh_ = false;  // nobody has state
  uint64_t fed_bytes_ = 0;
  using Staged = std::map<const Variable*, Copy>;
  const std::shared_ptr<Staged> staged_ = std::make_shared<Staged>();  // what this rank lacks
};

}  // namespace hvd::state

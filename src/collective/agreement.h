// Contract 1: the maximum of all ranks' epoch words, agreed on for each check without messages of its own.
//
// Every request carries how many checks its rank has begun and the rank's word. When all ranks have called an
// operation between the same two checks, rank 0 makes the maximum of all words it has heard a proposal for
// the next check; it travels with every outcome that leaves from then on. The next such operation may replace
// it by a newer one. A rank that begins a check while none of its operations of all ranks since the last
// check is unanswered has the last proposal there will ever be: a newer one would have needed a call of its
// own. It goes on without a word. Any other rank asks, and its question makes the proposal final; where there
// is none, the question waits for all ranks' questions or for the next proposal.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace hvd::collective {

struct Proposal {
  uint64_t check = 0;  // the check's number, from 1; 0: none
  uint64_t word = 0;
};

/// Rank 0's end. Pure.
class Agreement {
 public:
  void heard(uint64_t word) { heard_ = std::max(heard_, word); }
  /// The largest word heard, or the one that was pinned.
  uint64_t word() const { return pinned_ ? pinned_word_ : heard_; }
  /// From here on it stays so, whatever is heard: somebody was told already.
  void pin() {
    if (!pinned_) pinned_word_ = heard_;
    pinned_ = true;
  }

  /// All ranks have called an operation after `checks` checks each.
  void propose(uint64_t checks) { propose(checks, word()); }
  /// They have met for it on the board, all with this word, which was heard when the board was granted.
  void propose(uint64_t checks, uint64_t word) {
    const uint64_t check = checks + 1;
    if (check > latest().check) {
      older_ = latest_;
      latest_ = {{check, word}, false};
    } else if (check == latest().check && !latest_.final) {
      latest_.proposal.word = std::max(latest_.proposal.word, word);
    } else if (check > older_.proposal.check && check < latest().check) {
      older_ = {{check, word}, false};  // other threads called within that check, before it was answered
    }
  }
  bool pinned() const { return pinned_; }
  /// What is known of a check, and final from here on; NULL: nothing.
  const Proposal* settle(uint64_t check) {
    for (Entry* entry : {&latest_, &older_}) {
      if (check == 0 || entry->proposal.check != check) continue;
      entry->final = true;
      return &entry->proposal;
    }
    return nullptr;
  }
  /// To be sent with every outcome.
  const Proposal& latest() const { return latest_.proposal; }

 private:
  struct Entry {
    Proposal proposal;
    bool final = false;
  };
  uint64_t heard_ = 0, pinned_word_ = 0;
  bool pinned_ = false;
  // No rank is more than one check ahead of another: a check needs a call or a question of every rank.
  Entry latest_, older_;
};

/// A rank's end. Tickets grow with each call. Pure.
class Checks {
 public:
  uint64_t begun() const { return begun_; }
  /// An operation of all ranks was called.
  void called(uint64_t ticket) {
    if (first_ == 0) first_ = ticket;
    ++unanswered_;
  }
  /// Rank 0 has answered that call.
  void answered(uint64_t ticket) {
    if (first_ != 0 && ticket >= first_) --unanswered_;
  }
  /// Words of one check only grow: rank 0's because it hears more, and those of meetings are no larger than
  /// what rank 0 proposes by messages. So all ranks that have learned the same, in whatever order, know the
  /// same.
  void learned(const Proposal& proposal) {
    if (proposal.check > known_.check) known_ = proposal;
    if (proposal.check == known_.check) known_.word = std::max(known_.word, proposal.word);
  }
  /// Begins the next check. True: it is agreed, and *ret_word is the word. False: ask.
  bool begin(uint64_t* ret_word) {
    const bool quiet = unanswered_ == 0;
    idle_ = first_ == 0;
    ++begun_;
    first_ = 0;
    unanswered_ = 0;
    if (!quiet || known_.check != begun_) return false;
    *ret_word = known_.word;
    return true;
  }
  /// Nothing was called between the last two checks. If that is so on all ranks, nothing was proposed for the
  /// last one.
  bool idle() const { return idle_; }
  /// After a join: the number that all ranks go on from.
  void resume(uint64_t begun) {
    begun_ = begun;
    first_ = 0;
    unanswered_ = 0;
  }

 private:
  uint64_t begun_ = 0;
  uint64_t first_ = 0;  // ticket of the first call since the last check
  size_t unanswered_ = 0;
  bool idle_ = false;
  Proposal known_;
};

}  // namespace hvd::collective

// The coordinator's decisions (rank 0): which operations all ranks have called, in what order they run and
// which of them as one, which never will. Pure: events go in, with the time as an argument; actions come out.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collective/agreement.h"
#include "collective/fusion.h"
#include "collective/grants.h"
#include "collective/messages.h"
#include "collective/mismatch.h"
#include "collective/pending.h"

namespace hvd::collective {

/// Operations that one rank may have under way, and bytes that they may describe, bring and get back by
/// messages, about.
inline constexpr size_t kMostUnderWay = 65'536;
inline constexpr size_t kMostBytesUnderWay = size_t{512} << 20;

/// Under this name ranks ask for the agreement on a check that they can't tell by themselves.
inline constexpr const char* kCheckName = "hvd.check_host_updates";
/// True if a Submission, or its Signature, asks for that agreement. Others have the same kind.
template <class Call>
bool is_question(const Call& call) {
  return call.kind == Kind::kAgree && call.name == kCheckName;
}

struct MatcherConfig {
  std::vector<std::string> hosts;  // by rank
  Duration stall_warning{0};       // zero: no stall reports
  uint64_t fusion_threshold = 0;
  /// Sums of floating-point numbers are not fused, because where a number lies decides in which order its
  /// terms are added: on several hosts, or always.
  bool keep_order = false, keep_order_on_a_host = false;
  bool join_counts = false;                         // see EngineConfig
  size_t most_under_way = kMostUnderWay;            // see EngineConfig
  std::function<Status(uint64_t word)> interrupts;  // see EngineConfig
};

/// One thread at a time.
class Matcher {
 public:
  struct Action {
    enum class Type { kOutcome, kGrant, kStall, kRefused, kBreak, kStallReport };
    Type type = Type::kOutcome;
    int32_t rank = 0;              // to whom; kRefused, kBreak: whose call it was (kStallReport: nobody)
    uint64_t ticket = 0;           // of that rank's request
    std::vector<uint64_t> more;    // kOutcome: of the others that run as one with it
    OutcomePtr outcome;            // kOutcome
    Proposal proposal;             // kOutcome
    std::vector<int32_t> missing;  // kStall, kStallReport
    Duration waited{0};            // kStallReport
    Grant grant;                   // kGrant: to be opened before anybody is told
    std::string line;              // kRefused, kBreak, kStallReport
  };

  explicit Matcher(MatcherConfig config);
  ~Matcher();

  /// `rank` has called an operation (checked by decode and validate, or made by this rank's own engine).
  void request(int32_t rank, Request request, Time now);
  /// `rank` calls no more.
  void finish(int32_t rank);
  /// There is a board: what is called over and over is granted it.
  void use_board() { board_ = true; }
  /// All have met on the board after `checks` checks each, all with this word; whether there is something to
  /// take.
  bool met(uint64_t checks, uint64_t word);
  /// Of operations that run in the backend once all have met; whatever is called from now on comes after
  /// them. The first one's number.
  uint64_t reserve(uint64_t operations) { return std::exchange(sequence_, sequence_ + operations); }
  /// They have met: rank 0 runs it.
  void runs() { fusion_.started(); }
  /// Rank 0 is done with a batch that it ran in the backend.
  void ran();
  void tick(Time now);
  /// This process was held up for so long: nobody else was late meanwhile.
  void held_up(Duration time);

  /// Tick is needed at this time or earlier than it, if anything waits; Time::max() if never.
  Time wake() const { return wake_; }

  /// What is to be done, in order. Each rank gets its outcomes in the same relative order as all others.
  std::vector<Action> take() { return std::exchange(actions_, {}); }
  void take(std::vector<Action>* ret_actions) {
    ret_actions->clear();
    actions_.swap(*ret_actions);
  }

  /// Ranks that have not called what has this key; empty if nothing of it waits.
  std::vector<int32_t> missing(const std::string& key) const;
  size_t pending() const { return pending_.size() + ready_.size(); }

 private:
  using PendingPtr = std::unique_ptr<Pending>;
  struct Tombstone {
    std::string key;
    OutcomePtr outcome;
  };
  /// Answers to calls of one rank that come too late; the oldest are forgotten.
  struct Late {
    std::deque<Tombstone> answers;
    size_t bytes = 0;
  };
  struct Ready {
    PendingPtr pending;
    Verdict verdict;
  };
  /// Calls of a rank that wait for others.
  struct Share {
    size_t calls = 0, bytes = 0;
  };
  using Table = std::unordered_map<std::string, PendingPtr>;

  bool answer_late(int32_t rank, const Request& request);
  bool answer_question(int32_t rank, const Request& request);
  void arrive(const std::string& key, int32_t rank, Request&& request, Time now);
  void complete(Table::iterator it);
  void propose(const Pending& pending);
  bool answer_questions(uint64_t check);
  void grant(const Pending& pending, Verdict& verdict);
  bool fail_if_finished(Table::iterator it);
  OutcomePtr expire(const Pending& pending, Duration waited);
  void mark_deadlock();
  void stall(Pending& pending, Time now);
  void fail(Table::iterator it, OutcomePtr outcome, bool remember_missing);
  void answer(int32_t rank, uint64_t ticket, OutcomePtr outcome);
  void conclude(const Pending& pending, const Verdict& verdict);
  void start_ready();
  void joins(int32_t rank);
  void interrupt_joined();
  PendingPtr fresh(Time now);
  PendingPtr taken(Table::iterator it);
  bool exceeds(int32_t rank);
  static size_t weight(const Request& request);
  static size_t weight(const Tombstone& answer);
  static void remember(Late& late, Tombstone answer);

  // decision.cc
  Verdict decide(Pending& pending);
  bool fusable(const Pending& pending, const std::vector<int32_t>& participants) const;

  const MatcherConfig config_;
  const std::vector<std::string>& hosts_ = config_.hosts;
  Table pending_;
  std::unordered_map<uint64_t, Ready> ready_;  // wait for their turn in the backend
  uint64_t next_ready_ = 1;
  Fusion fusion_;
  bool board_ = false;
  Grants grants_;
  Agreement agreement_;
  std::vector<Share> shares_;  // by rank
  std::vector<bool> finished_;
  std::vector<bool> joined_;
  size_t joined_count_ = 0;
  int32_t last_joined_ = -1;
  OutcomePtr interrupted_;  // what joins are answered from now on
  std::vector<Late> late_;  // by rank
  std::vector<Action> actions_;
  std::vector<PendingPtr> spare_;
  Time wake_ = Time::max();
  uint64_t sequence_ = 1;
};

/// Bytes that an operation takes at rank 0 besides its calls, about: there is an entry for each rank.
size_t entry_weight(const std::string& key, size_t ranks);

/// The key under which the matcher keeps a call.
std::string key_of(const Signature& call, uint64_t checks);

}  // namespace hvd::collective

// The coordinator's decisions (rank 0): which operations all ranks have called, in what order they run,
// which never will. Pure: events go in, with the time as an argument; actions come out.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "collective/messages.h"

namespace hvd::collective {

/// One thread at a time.
class Matcher {
 public:
  struct Action {
    enum class Type { kOutcome, kStall, kLog };
    Type type = Type::kOutcome;
    int32_t rank = 0;              // to whom (kLog: nobody)
    uint64_t ticket = 0;           // of that rank's request
    OutcomePtr outcome;            // kOutcome
    std::vector<int32_t> missing;  // kStall
    std::string line;              // kLog: a warning
  };

  /// hosts: by rank. A stall_warning of zero turns stall reports off.
  Matcher(std::vector<std::string> hosts, Duration stall_warning);
  ~Matcher();

  /// `rank` has called an operation (checked by decode, or made by this rank's own engine).
  void request(int32_t rank, Request request, Time now);
  /// `rank` calls no more.
  void finish(int32_t rank);
  void tick(Time now);

  /// Tick is needed at this time or earlier than it, if anything waits; Time::max() if never.
  Time wake() const { return wake_; }

  /// What is to be done, in order. Each rank gets its outcomes in the same relative order as all others.
  std::vector<Action> take() { return std::exchange(actions_, {}); }

  /// Ranks that have not called `name`; empty if nothing of that name waits.
  std::vector<int32_t> missing(const std::string& name) const;
  size_t pending() const { return pending_.size(); }

 private:
  struct Pending;
  struct Tombstone {
    std::string name;
    OutcomePtr outcome;
  };
  using Table = std::unordered_map<std::string, std::unique_ptr<Pending>>;

  void arrive(Pending& pending, int32_t rank, Request&& request, Time now);
  bool answer_late(int32_t rank, const Request& request);
  bool fail_if_finished(Table::iterator it);
  OutcomePtr decide(Pending& pending);
  OutcomePtr expire(const Pending& pending, Duration waited);
  void mark_deadlock();
  void stall(Pending& pending, Time now);
  void conclude(Table::iterator it, OutcomePtr outcome, bool remember_missing);

  const std::vector<std::string> hosts_;
  const Duration stall_warning_;
  Table pending_;
  std::vector<bool> finished_;
  std::vector<std::deque<Tombstone>> tombstones_;  // by rank: answers to calls that come too late
  std::vector<Action> actions_;
  Time wake_ = Time::max();
  uint64_t sequence_ = 1;
};

/// "rank 2 (host b)", "ranks 0 (host a), 1 (host a)"; of many only the first few and a count.
std::string describe_ranks(const std::vector<int32_t>& ranks, const std::vector<std::string>& hosts);

/// Do two ranks' calls agree in everything that must agree (contract 9)?
bool agrees(const Request& a, const Request& b);

/// Says in what the calls differ: who has which value. `calls` by rank, NULL for those that did not call.
std::string describe_mismatch(const std::vector<const Request*>& calls,
                              const std::vector<std::string>& hosts);

}  // namespace hvd::collective

// Random histories of the coordinator, replayed from a seed: ranks call the same operations in orders of
// their own, over links that delay (each in order); names are used again; some calls disagree; time-outs
// strike; a rank may finish early.
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "collective/calls.h"
#include "collective/matcher.h"

namespace hvd::collective {
namespace {

using testing::Call;

struct Step {  // one use of one name
  std::string name;
  std::map<int32_t, Call> calls;  // by participating rank
  bool clean = true;              // all calls agree
};

class History {
 public:
  explicit History(uint64_t seed) : random_(seed) {}

  /// "" or what went wrong.
  std::string run() {
    size_ = pick(2, 5);
    timeouts_ = pick(0, 2) == 0;
    std::vector<std::string> hosts;
    for (int r = 0; r < size_; ++r) hosts.push_back("h" + std::to_string(r / 2));
    MatcherConfig config;
    config.hosts = hosts;
    if (pick(0, 1) == 0) config.stall_warning = Duration(50);
    if (pick(0, 1) == 0) config.fusion_threshold = static_cast<uint64_t>(pick(1, 100));
    Matcher matcher(config);
    make_steps();
    ranks_.resize(static_cast<size_t>(size_));
    const int quitter = pick(0, 3) == 0 ? pick(0, size_ - 1) : -1;
    for (int r = 0; r < size_; ++r) {
      for (size_t i = 0; i < steps_.size(); ++i) {
        if (steps_[i].calls.contains(r)) rank(r).to_call.push_back(i);
      }
      std::shuffle(rank(r).to_call.begin(), rank(r).to_call.end(), random_);
    }
    if (quitter >= 0) rank(quitter).quits_after = pick(0, static_cast<int>(rank(quitter).to_call.size()));
    for (int turn = 0; turn < 100000; ++turn) {
      if (!advance(matcher)) {
        if (idle()) break;
        // Everything has been called and nothing is on its way: what still waits can only time out.
        time_ += Duration(1000);
        matcher.tick(time_);
        collect(matcher);
        if (idle()) break;
        if (turn > 50000) return "no progress";
      }
      if (!problem_.empty()) return problem_;
    }
    return judge(matcher, quitter);
  }

 private:
  struct Rank {
    std::vector<size_t> to_call;           // steps, in the order this rank would like
    std::map<uint64_t, size_t> under_way;  // ticket → step
    std::set<std::string> in_use;
    std::map<std::string, size_t> used;       // how often each name was called
    std::deque<std::pair<bool, Request>> up;  // first: a call; else "finished"
    std::deque<Matcher::Action> down;
    std::map<size_t, OutcomePtr> results;
    uint64_t last_sequence = 0;
    int quits_after = -1;  // calls made before it finishes early
    int called = 0;
    bool finished = false;
  };

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  Rank& rank(int r) { return ranks_[static_cast<size_t>(r)]; }

  void make_steps() {
    const int count = pick(1, 10);
    std::map<std::string, size_t> uses;
    for (int i = 0; i < count; ++i) {
      Step step;
      step.name = std::string(1, static_cast<char>('a' + pick(0, 3)));
      Call base;
      base.name = step.name;
      constexpr Kind kKinds[] = {Kind::kBroadcast, Kind::kAllreduce,       Kind::kAllgather,
                                 Kind::kBarrier,   Kind::kBroadcastObject, Kind::kAgree};
      base.kind = kKinds[pick(0, 5)];
      const bool some = pick(0, 4) == 0;  // of the ranks only
      base.timeout = timeouts_ ? Duration(pick(20, 200)) : Duration(1'000'000'000);
      if (base.kind == Kind::kAllreduce) base.reduction = pick(HVD_REDUCTION_SUM, HVD_REDUCTION_PRODUCT);
      if (base.kind == Kind::kBroadcast || base.kind == Kind::kBroadcastObject) {
        base.root = pick(0, size_ - 1);
      }
      if (base.kind != Kind::kBarrier && base.kind != Kind::kAgree && base.kind != Kind::kBroadcastObject) {
        base.specs = {{HVD_DTYPE_FLOAT32, {pick(1, 3), pick(0, 3)}}};
      }
      std::vector<int32_t> members;
      for (int r = 0; r < size_; ++r) {
        if (!some || r == base.root || pick(0, 1) == 0) members.push_back(r);
      }
      if (some) {
        base.members = members;
        step.name = base.name = "t" + std::to_string(i);  // its positions differ per rank: a name of its own
      }
      for (const int32_t r : members) {
        Call call = base;
        if (call.kind == Kind::kAgree) call.word = static_cast<uint64_t>(pick(0, 100));
        if (call.kind == Kind::kAllgather) call.specs[0].shape[0] = pick(0, 4);
        if (call.kind == Kind::kBroadcastObject && r == call.root) {
          call.object_size = static_cast<uint64_t>(pick(0, 3)) * 30000;
          if (call.object_size <= kInlineObject) call.bytes.assign(call.object_size, 7);
        }
        step.calls.emplace(r, std::move(call));
      }
      if (members.size() > 1 && !base.specs.empty() && pick(0, 3) == 0) {
        step.clean = false;
        step.calls[members[static_cast<size_t>(pick(0, static_cast<int>(members.size()) - 1))]]
            .specs[0]
            .shape[1] = 9;
      }
      position_.push_back(uses[step.name]++);
      steps_.push_back(std::move(step));
    }
  }

  /// One random event; false if there is none.
  bool advance(Matcher& matcher) {
    std::vector<std::pair<int, int>> events;  // what, rank
    for (int r = 0; r < size_; ++r) {
      if (callable(r) != steps_.size()) events.emplace_back(0, r);
      if (!rank(r).up.empty()) events.emplace_back(1, r);
      if (!rank(r).down.empty()) events.emplace_back(2, r);
      if (!rank(r).finished && (rank(r).to_call.empty() || rank(r).called == rank(r).quits_after))
        events.emplace_back(3, r);
    }
    if (in_backend_ > 0) events.emplace_back(4, 0);
    if (events.empty()) return false;
    if (timeouts_ && pick(0, 4) == 0) {
      time_ += Duration(pick(1, 30));
      matcher.tick(time_);
      collect(matcher);
      return true;
    }
    const auto [what, r] = events[static_cast<size_t>(pick(0, static_cast<int>(events.size()) - 1))];
    Rank& self = rank(r);
    if (what == 0) {
      const size_t step = callable(r);
      self.to_call.erase(std::find(self.to_call.begin(), self.to_call.end(), step));
      Call call = steps_[step].calls.at(r);
      call.ticket = ++ticket_;
      self.under_way[call.ticket] = step;
      self.in_use.insert(call.name);
      ++self.used[call.name];
      ++self.called;
      self.up.emplace_back(true, std::move(call));
    } else if (what == 1) {
      auto [is_call, call] = std::move(self.up.front());
      self.up.pop_front();
      if (is_call) {
        matcher.request(r, std::move(call), time_);
      } else {
        matcher.finish(r);
      }
      collect(matcher);
    } else if (what == 2) {
      receive(r);
    } else if (what == 4) {
      --in_backend_;
      matcher.ran();
      collect(matcher);
    } else {
      self.finished = true;
      self.to_call.clear();
      self.up.emplace_back(false, Request());
    }
    return true;
  }

  /// The next step that this rank may call now: its name is not in use, earlier uses of it have been called.
  size_t callable(int r) {
    Rank& self = rank(r);
    if (self.finished || self.called == self.quits_after) return steps_.size();
    for (const size_t i : self.to_call) {
      if (!self.in_use.contains(steps_[i].name) && self.used[steps_[i].name] == position_[i]) return i;
    }
    return steps_.size();
  }

  void collect(Matcher& matcher) {
    for (auto& action : matcher.take()) {
      using Type = Matcher::Action::Type;
      if (action.type != Type::kOutcome && action.type != Type::kStall) continue;
      if (action.rank == 0 && action.outcome != nullptr && action.outcome->sequence != 0) ++in_backend_;
      rank(action.rank).down.push_back(std::move(action));
    }
  }

  void receive(int r) {
    Rank& self = rank(r);
    const auto action = std::move(self.down.front());
    self.down.pop_front();
    if (action.type == Matcher::Action::Type::kStall) return;
    std::vector<uint64_t> tickets = action.more;
    tickets.insert(tickets.begin(), action.ticket);
    for (const uint64_t ticket : tickets) {
      const auto it = self.under_way.find(ticket);
      if (it == self.under_way.end()) {
        problem_ = "rank " + std::to_string(r) + " was answered twice or for nothing";
        return;
      }
      const size_t step = it->second;
      self.under_way.erase(it);
      self.in_use.erase(steps_[step].name);
      self.results[step] = action.outcome;
    }
    if (action.outcome->sequence != 0) {
      if (action.outcome->sequence <= self.last_sequence)
        problem_ = "sequence does not grow on rank " + std::to_string(r);
      self.last_sequence = action.outcome->sequence;
    }
  }

  bool idle() {
    for (int r = 0; r < size_; ++r) {
      if (!rank(r).under_way.empty() || !rank(r).up.empty() || !rank(r).down.empty() || !rank(r).finished)
        return false;
    }
    return true;
  }

  std::string judge(const Matcher& matcher, int quitter) {
    if (!problem_.empty()) return problem_;
    if (!idle()) return "not everybody was answered";
    if (matcher.pending() != 0) return "something is left in the matcher";
    for (size_t i = 0; i < steps_.size(); ++i) {
      const Step& step = steps_[i];
      const std::string where = "step " + std::to_string(i) + " '" + step.name + "': ";
      OutcomePtr first;
      size_t answered = 0;
      uint64_t word = 0;
      for (const auto& [r, call] : step.calls) {
        word = std::max(word, call.word);
        const auto it = rank(r).results.find(i);
        if (it == rank(r).results.end()) {
          if (r != quitter) return where + "rank " + std::to_string(r) + " has no outcome";
          continue;
        }
        ++answered;
        const Outcome& outcome = *it->second;
        if (first == nullptr) first = it->second;
        if (outcome.status.code != first->status.code || outcome.status.message != first->status.message) {
          return where + "'" + outcome.status.message + "' and '" + first->status.message + "'";
        }
        if (outcome.sequence != first->sequence) return where + "sequences differ";
      }
      if (first == nullptr) continue;
      const bool everybody = answered == step.calls.size();
      const hvd_status code = first->status.code;
      if (code == HVD_OK && (!step.clean || !everybody)) return where + "must not succeed";
      if (everybody && !timeouts_ && code != (step.clean ? HVD_OK : HVD_MISMATCH)) {
        return where + "ended with " + first->status.message;
      }
      if (!everybody && !timeouts_ && code != HVD_PEER_LOST)
        return where + "ended with " + first->status.message;
      if (code == HVD_OK && step.calls.begin()->second.kind == Kind::kAgree && first->word != word) {
        return where + "wrong word";
      }
    }
    return "";
  }

  std::mt19937_64 random_;
  int size_ = 0;
  bool timeouts_ = false;
  Time time_{};
  uint64_t ticket_ = 0;
  std::vector<Step> steps_;
  std::vector<size_t> position_;  // of each step among the uses of its name
  std::vector<Rank> ranks_;
  size_t in_backend_ = 0;  // batches that rank 0 runs
  std::string problem_;
};

// Contract 9, 12: every rank gets the same answers in the same order, once, whatever the interleaving.
TEST(MatcherHistory, EveryRankGetsTheSame) {
  const char* given = std::getenv("HVD_TEST_SEED");
  const uint64_t base = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  const uint64_t count = given != nullptr ? 1 : 20000;
  for (uint64_t seed = base; seed < base + count; ++seed) {
    const std::string problem = History(seed).run();
    ASSERT_EQ(problem, "") << "replay with HVD_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace hvd::collective

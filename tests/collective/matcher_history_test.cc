// Random histories of the coordinator, replayed from a seed: ranks call the same operations in orders of
// their own, over links that delay (each in order); names are used again; some calls disagree; time-outs
// strike; a rank may finish early. Operations are of all kinds but join, some with their data.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "collective/calls.h"
#include "collective/kinds/kind.h"
#include "collective/match_results.h"
#include "collective/matcher.h"

namespace hvd::collective {
namespace {

using testing::Call;
using testing::Floats;
using testing::kTraits;
using testing::Step;
using testing::Traits;
using testing::traits_of;

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
      const Traits& kind = kTraits[pick(0, static_cast<int>(std::size(kTraits)) - 1)];
      base.kind = kind.kind;
      const bool some = base.kind != Kind::kSend && pick(0, 4) == 0;  // of the ranks only
      base.timeout = timeouts_ ? Duration(pick(20, 200)) : Duration(1'000'000'000);
      if (kind.reduces) base.reduction = pick(HVD_REDUCTION_SUM, HVD_REDUCTION_PRODUCT);
      if (kind.rooted) base.root = pick(0, size_ - 1);
      if (kind.tensor) base.specs = {{HVD_DTYPE_FLOAT32, {pick(1, 3), pick(0, 3)}}};
      std::vector<int32_t> members;
      for (int r = 0; r < size_; ++r) {
        if (!some || r == base.root || pick(0, 1) == 0) members.push_back(r);
      }
      if (some) {
        base.members = members;
        step.name = base.name = "t" + std::to_string(i);  // its positions differ per rank: a name of its own
      }
      if (base.kind == Kind::kSend) {  // the pair is a set of its own
        const int32_t receiver = (base.root + pick(1, size_ - 1)) % size_;
        base.members = members = {std::min(base.root, receiver), std::max(base.root, receiver)};
        base.set = "hvd." + std::to_string(base.root) + ">" + std::to_string(receiver);
        step.name = base.name + " " + base.set;
      }
      step.carries = kind.tensor && pick(0, 1) == 0;
      if (kind.reduces && kind.deals) split(&base, members.size());
      for (const int32_t r : members) {
        Call call = base;
        if (call.kind == Kind::kAgree) call.word = static_cast<uint64_t>(pick(0, 100));
        if (kind.own_rows) call.specs[0].shape[0] = pick(0, 4);
        if (kind.own_rows && kind.deals) split(&call, members, r);
        if (call.kind == Kind::kBroadcastObject && r == call.root) {
          call.object_size = static_cast<uint64_t>(pick(0, 3)) * 30000;
          if (call.object_size <= kInlineObject) call.bytes.assign(call.object_size, 7);
        }
        if (step.carries && (!kind.in_place || r == call.root)) fill(&call);
        step.calls.emplace(r, std::move(call));
      }
      if (members.size() > 1 && kind.tensor && pick(0, 3) == 0) {
        step.clean = false;
        Call& odd = step.calls[members[static_cast<size_t>(pick(0, static_cast<int>(members.size()) - 1))]];
        if (kind.rooted && pick(0, 1) == 0) {
          odd.root = (odd.root + 1) % size_;
        } else {
          odd.specs[0].shape[1] = 9;
        }
      }
      position_.push_back(uses[step.name]++);
      steps_.push_back(std::move(step));
    }
  }

  /// Its rows among so many, at random.
  void split(Call* call, size_t members) {
    call->splits.assign(members, 0);
    for (int64_t i = 0; i < call->specs[0].shape[0]; ++i) {
      ++call->splits[static_cast<size_t>(pick(0, static_cast<int>(members) - 1))];
    }
  }
  /// The same as its kind does on rank r.
  void split(Call* call, const std::vector<int32_t>& members, int32_t r) {
    if (call->kind == Kind::kScatter && r != call->root) call->specs[0].shape[0] = 0;
    if (call->kind != Kind::kGather) return split(call, members.size());
    for (const int32_t to : members) {
      call->splits.push_back(to == call->root ? call->specs[0].shape[0] : 0);
    }
  }
  void fill(Call* call) {
    const auto& shape = call->specs[0].shape;
    Floats data(static_cast<size_t>(shape[0] * shape[1]));
    for (float& x : data) x = static_cast<float>(pick(0, 16));
    call->carries = true;
    call->bytes.resize(data.size() * sizeof(float));
    if (!data.empty()) std::memcpy(call->bytes.data(), data.data(), call->bytes.size());
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
      self.in_use.insert(steps_[step].name);
      ++self.used[steps_[step].name];
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
      if (code != HVD_OK) continue;
      if (step.calls.begin()->second.kind == Kind::kAgree && first->word != word) return where + "wrong word";
      if (std::string problem = judge_results(i, first->sequence != 0); !problem.empty())
        return where + problem;
    }
    return "";
  }

  /// Of a step that succeeded.
  std::string judge_results(size_t i, bool runs) {
    const Step& step = steps_[i];
    bool any = false;  // data
    size_t me = 0;
    for (const auto& [r, own] : step.calls) {
      const Outcome& outcome = *rank(r).results.at(i);
      const std::string where =
          std::string(traits_of(own.kind).name) + " on rank " + std::to_string(r) + ": ";
      if (outcome.rows != rows_for(step, me)) return where + "wrong rows";
      if (own.kind == Kind::kBroadcastObject) {
        const Call& root = step.calls.at(own.root);
        if (outcome.object_size != root.object_size) return where + "wrong size";
        if (runs != (root.object_size > kInlineObject && step.calls.size() > 1)) return where + "wrong way";
        if (r != own.root && !runs && outcome.payload != root.bytes) return where + "wrong object";
      } else if (step.carries && step.calls.size() > 1) {
        if (runs) return where + "the backend runs it, though all data are here";
        const Floats data = data_for(step, me, r);
        if (!testing::same(testing::floats(outcome.payload.bytes()), data)) return where + "wrong data";
      }
      if (!own.specs.empty()) any = any || own.specs[0].shape[0] * own.specs[0].shape[1] > 0;
      ++me;
    }
    if (any && step.calls.size() > 1 && !step.carries && !runs) return "nobody moves its data";
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

TEST(MatcherHistory, HasEveryKindButJoin) {
  for (uint8_t i = 0; find_row(i) != nullptr; ++i) {
    const Kind kind = find_row(i)->kind;
    EXPECT_EQ(std::any_of(std::begin(kTraits), std::end(kTraits),
                          [&](const Traits& traits) { return traits.kind == kind; }),
              kind != Kind::kJoin)
        << find_row(i)->name;
  }
}

}  // namespace
}  // namespace hvd::collective

// Random histories of ranks that meet on the board, replayed from a seed, in one thread: they repeat calls,
// change them, wait for some and not for others, call from a second thread, are late, give up, learn new
// words and check them, join and finish. Every call ends once with the right data, on all ranks alike, and
// every check is agreed and as new as it must be.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "collective/simulation.h"

namespace hvd::collective {
namespace {

using testing::Simulation;
using Meeting = Engine::Meeting;

constexpr int kNames = 3;

/// One call, the same in all that must agree on every rank unless `differs`.
struct Call {
  int name = 0;
  Kind kind = Kind::kAllreduce;
  size_t elements = 1;
  hvd_reduction reduction = HVD_REDUCTION_SUM;
  double prescale = 1, postscale = 1;
  int32_t root = 0;
  bool check = false;    // a check of host updates after it, and
  size_t checks = 0;     // so many more
  int32_t differs = -1;  // this rank calls it with another shape
  int32_t priority = 0;
};

class History {
 public:
  explicit History(uint64_t seed)
      : size_(static_cast<int32_t>(seed % 3) + 2), sim_(size_, seed), ranks_(static_cast<size_t>(size_)) {}

  std::string run() {
    sim_.use_board();
    words_.resize(ranks_.size(), 1);
    EngineConfig config;
    config.generation = 3;
    config.hosts.assign(ranks_.size(), "h");
    config.small_data = sim_.chance(4) ? 0 : sim_.chance(2) ? 2 << 10 : 64 << 10;
    for (int32_t r = 0; r < size_; ++r) {
      config.word = [this, r] { return words_[static_cast<size_t>(r)]; };
      sim_.add_engine(config);
    }
    for (auto& engine : sim_.engines) engine->start();
    make_calls();
    sim_.advance = [this] { return advance(); };
    while (problem_.empty() && !over() && advance()) {}
    if (problem_.empty() && !over()) problem_ = "nothing happens any more";
    for (const auto& [number, check] : checks_) {
      if (problem_.empty() && !check.open && agreed_[number] < check.bound) {
        problem_ = "check " + std::to_string(number) + " gives " + std::to_string(agreed_[number]) +
                   ", but " + std::to_string(check.bound) + " was known at a call before it";
      }
    }
    for (auto& engine : sim_.engines) engine->fail(Status(HVD_CLOSED, "over"));
    while (sim_.step()) {}
    return problem_;
  }

  size_t met = 0, ran = 0, met_for_checks = 0, gave_up = 0, beside = 0, by_messages = 0, silent_checks = 0;

 private:
  struct Rank {
    size_t call = 0;  // the next one
    bool checked = true;
    bool in_check = false;
    bool meets_check = false, asks = false;  // it meets for one, and is to ask for it
    Submission question;
    size_t sent = 0, number = 0;  // at its beginning
    bool quiet = false;
    uint64_t bound_of_check = 0;
    std::optional<Submission> submission;  // under way
    std::optional<Engine::Met> meeting;
    std::shared_ptr<Operation> operation;
    std::vector<std::vector<int32_t>> in, out;
    bool waits = true;
    uint64_t bound = 0;  // its word at its last call that had completed before a check
    uint64_t word = 0;   // at the call
    size_t checks = 0, checks_in_a_row = 0;
    std::vector<std::pair<std::shared_ptr<Operation>, size_t>> open;  // not waited for, and of which call
    std::map<size_t, std::vector<int32_t>> data;                      // of those
    size_t seconds = 0;                                               // calls of the second thread
    std::shared_ptr<Operation> second;                                // its last one
    std::vector<int32_t> seconds_data;
  };

  Rank& rank(int32_t r) { return ranks_[static_cast<size_t>(r)]; }
  int pick(int low, int high) { return sim_.pick(low, high); }

  void make_calls() {
    std::vector<Call> patterns(kNames);
    for (int i = 0; i < kNames; ++i) {
      Call& call = patterns[static_cast<size_t>(i)];
      call.name = i;
      const int kind = pick(0, 4);
      call.kind = kind == 0 ? Kind::kBroadcast : kind == 1 ? Kind::kBarrier : Kind::kAllreduce;
      call.elements = static_cast<size_t>(sim_.chance(3) ? pick(1021, 1100) : pick(0, 5));
      call.reduction = pick(HVD_REDUCTION_SUM, HVD_REDUCTION_MAX);
      if (sim_.chance(4)) call.prescale = 2, call.postscale = 3;
      call.root = pick(0, size_ - 1);
    }
    wild_ = sim_.chance(3) ? 8 : sim_.chance(2) ? 40 : 200;
    const int count = pick(10, 80);
    seconds_ = sim_.chance(2) ? 0 : static_cast<size_t>(pick(1, 12));
    for (int i = 0; i < count; ++i) {
      Call& pattern = patterns[static_cast<size_t>(pick(0, kNames - 1))];
      if (sim_.chance(wild_)) pattern.elements = static_cast<size_t>(pick(0, 2200));  // from now on
      Call call = pattern;
      call.check = sim_.chance(3);
      if (sim_.chance(4)) call.checks = static_cast<size_t>(pick(1, 6));
      // Now and then it differs in the same way twice: what is no agreement must not become a habit.
      const bool again = pattern.differs >= 0 && sim_.chance(2);
      pattern.differs = again ? pattern.differs : -1;
      if (sim_.chance(2 * wild_) && call.kind != Kind::kBarrier) pattern.differs = pick(0, size_ - 1);
      call.differs = pattern.differs;
      if (sim_.chance(2 * wild_)) call.priority = pick(0, 2);
      calls_.push_back(call);
    }
  }

  int32_t value(int32_t r, size_t call, size_t i) const {
    return static_cast<int32_t>((static_cast<size_t>(r) * 31 + call * 7 + i) % 17 + 1);
  }

  Submission submission(int32_t r, size_t index) {
    const Call& call = calls_[index];
    Rank& me = rank(r);
    Submission s;
    s.name = "n" + std::to_string(call.name);
    s.kind = call.kind;
    s.priority = call.priority;
    if (call.kind == Kind::kBarrier) return s;
    const size_t elements = call.elements + (call.differs == r ? 1 : 0);
    auto& data = me.data[index];
    data.clear();
    for (size_t i = 0; i < elements; ++i) data.push_back(value(r, index, i));
    const Tensor tensor{data.data(), HVD_DTYPE_INT32, {static_cast<int64_t>(elements)}};
    s.outputs = {tensor};
    if (call.kind == Kind::kBroadcast) {
      s.root = call.root;
      return s;
    }
    s.inputs = {tensor};
    s.reduction = call.reduction;
    s.prescale = call.prescale;
    s.postscale = call.postscale;
    return s;
  }

  int32_t expected(size_t index, size_t i) const {
    const Call& call = calls_[index];
    if (call.kind == Kind::kBroadcast) return value(call.root, index, i);
    const auto scale = static_cast<int32_t>(call.prescale);
    int32_t result = value(0, index, i) * scale;
    for (int32_t r = 1; r < size_; ++r) {
      const int32_t term = value(r, index, i) * scale;
      switch (call.reduction) {
        case HVD_REDUCTION_MIN: result = std::min(result, term); break;
        case HVD_REDUCTION_MAX: result = std::max(result, term); break;
        default: result += term;
      }
    }
    if (call.reduction == HVD_REDUCTION_AVERAGE) result /= size_;
    return result * static_cast<int32_t>(call.postscale);
  }

  void ended(int32_t r, size_t index, const Status& status) {
    const Call& call = calls_[index];
    const hvd_status wanted = call.differs >= 0 ? HVD_MISMATCH : HVD_OK;
    if (status.code != wanted) {
      problem_ = "call " + std::to_string(index) + " on rank " + std::to_string(r) + " ended with " +
                 std::to_string(status.code) + " " + status.message;
    }
    if (wanted == HVD_OK && call.kind != Kind::kBarrier) {
      const auto& data = rank(r).data[index];
      for (size_t i = 0; i < data.size(); ++i) {
        if (data[i] == expected(index, i)) continue;
        problem_ = "call " + std::to_string(index) + " on rank " + std::to_string(r) + ": element " +
                   std::to_string(i) + " is " + std::to_string(data[i]) + ", expected " +
                   std::to_string(expected(index, i));
        break;
      }
    }
    rank(r).data.erase(index);
  }

  bool over() {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      return rank.call == calls_.size() && rank.checked && !rank.in_check && rank.open.empty() &&
             rank.seconds == seconds_ && rank.second == nullptr && !rank.meets_check && !rank.asks;
    });
  }

  bool advance() {
    // Ranks move in turns of chance; what is on its way arrives in between.
    for (int tries = 0; tries < 400 && problem_.empty(); ++tries) {
      const auto r = static_cast<int32_t>(pick(0, size_));
      if (r == size_) {
        if (sim_.step()) return true;
        continue;
      }
      if (sim_.chance(20 * wild_)) words_[static_cast<size_t>(r)] += static_cast<uint64_t>(pick(1, 3));
      if (step(r)) return true;
    }
    return sim_.step();
  }

  /// Something that this rank does; false if it can do nothing now.
  bool step(int32_t r) {
    Rank& me = rank(r);
    if (me.in_check) return false;
    const bool holds = me.meeting && me.meeting->runs;
    if ((me.second != nullptr || sim_.chance(holds ? 2 : 6)) && second(r)) return true;
    for (auto it = me.open.begin(); it != me.open.end(); ++it) {
      if (!it->first->done()) continue;
      const auto [operation, index] = *it;
      me.open.erase(it);
      ended(r, index, operation->status());
      return true;
    }
    if (me.meeting) return (!holds || !sim_.chance(2)) && look(r);
    if (me.operation != nullptr) {
      if (!me.operation->done()) return false;
      const std::shared_ptr<Operation> operation = std::move(me.operation);
      complete(r, operation->status());
      return true;
    }
    // Who waits in a check returns only when those who came later have: none of these is one check ahead.
    const auto ahead = [&](size_t checks) {
      return std::any_of(ranks_.begin(), ranks_.end(),
                         [&](const Rank& other) { return other.in_check && other.checks <= checks; });
    };
    if (me.asks) return !ahead(me.number) && ask(r);
    if (!me.checked) return !ahead(me.checks) && check(r);
    if (me.call == calls_.size()) return false;
    return begin(r);
  }

  Engine& engine(int32_t r) { return *sim_.engines[static_cast<size_t>(r)]; }

  bool begin(int32_t r) {
    Rank& me = rank(r);
    const std::string name = "n" + std::to_string(calls_[me.call].name);
    for (const auto& [operation, index] : me.open) {
      if (calls_[index].name == calls_[me.call].name) return false;  // its name is in use
    }
    me.submission = submission(r, me.call);
    me.word = words_[static_cast<size_t>(r)];
    me.waits = !sim_.chance(wild_);
    if (me.waits && (me.meeting = engine(r).arrive(*me.submission))) return true;
    submit(r);
    return true;
  }

  void submit(int32_t r) {
    Rank& me = rank(r);
    ++by_messages;
    auto operation = engine(r).submit(std::move(*me.submission));
    me.submission.reset();
    if (me.waits) {
      me.operation = std::move(operation);
      return;
    }
    me.open.emplace_back(std::move(operation), me.call);
    me.checked = !calls_[me.call].check;
    ++me.call;
  }

  /// Whether rank 0 takes no part in that call of the second threads.
  bool without_first(size_t call) const { return size_ > 2 && call % 2 == 1; }

  /// The second thread waits for each of its calls.
  bool second(int32_t r) {
    Rank& me = rank(r);
    if (me.second != nullptr) {
      if (!me.second->done()) return false;
      const Status status = me.second->status();
      for (size_t i = 0; i < me.seconds_data.size() && problem_.empty(); ++i) {
        int32_t sum = 0;
        for (int32_t other = without_first(me.seconds) ? 1 : 0; other < size_; ++other) {
          sum += value(other, 1000 + me.seconds, i);
        }
        if (!status.ok() || me.seconds_data[i] != sum)
          problem_ = "call of a second thread: " + status.message;
      }
      me.second = nullptr;
      ++me.seconds;
      return true;
    }
    if (me.seconds == seconds_) return false;
    const bool apart = without_first(me.seconds);
    if (apart && r == 0) {
      ++me.seconds;
      return true;
    }
    me.seconds_data.clear();
    const size_t elements = me.seconds % 3 == 0 ? 1 : 1100;
    for (size_t i = 0; i < elements; ++i) me.seconds_data.push_back(value(r, 1000 + me.seconds, i));
    Submission s;
    s.name = apart ? "apart" : "second";
    s.kind = Kind::kAllreduce;
    for (int32_t member = 1; apart && member < size_; ++member) s.members.push_back(member);
    if (apart) s.set = "apart";
    s.inputs = {{me.seconds_data.data(), HVD_DTYPE_INT32, {static_cast<int64_t>(elements)}}};
    s.outputs = s.inputs;
    if (me.meeting && me.meeting->runs) ++beside;
    me.second = engine(r).submit(std::move(s));
    return true;
  }

  bool look(int32_t r) {
    Rank& me = rank(r);
    Meeting state = engine(r).look(*me.meeting);
    if (state == Meeting::kOpen && sim_.chance(3 * wild_)) {
      state = engine(r).close(*me.meeting);
      ++gave_up;
    }
    if (state == Meeting::kOpen) return true;
    if (me.meets_check) {
      const auto concluded = engine(r).conclude(*me.meeting, state, me.question);
      me.meeting.reset();
      me.meets_check = false;
      me.asks = !concluded;
      if (concluded) {
        ++met_for_checks;
        checked(r, concluded->status, concluded->word);
      }
      return true;
    }
    const auto status = engine(r).conclude(*me.meeting, state, *me.submission);
    me.meeting.reset();
    if (!status) {
      submit(r);
      return true;
    }
    ++met;
    me.submission.reset();
    if (status->operation != nullptr) {
      ++ran;
      me.operation = status->operation;
      return true;
    }
    complete(r, status->status);
    return true;
  }

  void complete(int32_t r, const Status& status) {
    Rank& me = rank(r);
    me.bound = std::max(me.bound, me.word);
    ended(r, me.call, status);
    me.checked = !calls_[me.call].check;
    ++me.call;
  }

  bool check(int32_t r) {
    Rank& me = rank(r);
    me.number = me.checks++;
    me.sent = sim_.sent[r];
    me.quiet = me.open.empty() && me.second == nullptr;
    me.bound_of_check = me.bound;
    // Now and then several in a row.
    const size_t index = me.call == 0 ? 0 : me.call - 1;
    me.checked = me.checks_in_a_row++ >= calls_[index].checks;
    if (me.checked) me.checks_in_a_row = 0;
    uint64_t word = 0;
    me.question = Engine::question(seconds(600));
    bool known = false;
    if (Status status = engine(r).begin_check(&word, &known); known || !status.ok()) {
      checked(r, status, word);
    } else if ((me.meeting = engine(r).arrive(me.question))) {
      me.meets_check = true;
    } else {
      me.asks = true;
    }
    return true;
  }

  bool ask(int32_t r) {
    Rank& me = rank(r);
    me.asks = false;
    me.in_check = true;
    uint64_t word = 0;
    const Status status = engine(r).ask(std::move(me.question), &word);  // others go on within it
    me.in_check = false;
    checked(r, status, word);
    return true;
  }

  void checked(int32_t r, const Status& status, uint64_t word) {
    Rank& me = rank(r);
    const size_t number = me.number, sent = me.sent;
    const bool quiet = me.quiet;
    const uint64_t bound = me.bound_of_check;
    if (!status.ok()) problem_ = "check " + std::to_string(number) + ": " + status.message;
    if (sim_.sent[r] == sent) ++silent_checks;
    const auto [it, first] = agreed_.emplace(number, word);
    if (it->second != word) {
      problem_ = "check " + std::to_string(number) + " gives " + std::to_string(word) + " on rank " +
                 std::to_string(r) + ", " + std::to_string(it->second) + " on another";
    }
    Check& of = checks_[number];
    of.open = of.open || !quiet;
    of.bound = std::max(of.bound, bound);
  }

  const int32_t size_;
  Simulation sim_;
  size_t seconds_ = 0;
  int wild_ = 8;  // the lower, the more happens that is no repetition
  std::vector<Call> calls_;
  std::vector<Rank> ranks_;
  std::vector<uint64_t> words_;
  struct Check {
    bool open = false;   // some rank had left a call open
    uint64_t bound = 0;  // of all ranks' words at their last calls before it
  };
  std::map<size_t, uint64_t> agreed_;
  std::map<size_t, Check> checks_;
  std::string problem_;
};

TEST(MeetingHistory, EveryCallEndsRightAndEveryCheckIsAgreed) {
  const char* given = std::getenv("HVD_SEED");
  const uint64_t first = given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
  const uint64_t last = given == nullptr ? 3000 : first;
  size_t met = 0, ran = 0, met_for_checks = 0, beside = 0, gave_up = 0, by_messages = 0, silent = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    History history(seed);
    const std::string problem = history.run();
    ASSERT_EQ(problem, "") << "HVD_SEED=" << seed;
    met += history.met;
    ran += history.ran;
    met_for_checks += history.met_for_checks;
    beside += history.beside;
    gave_up += history.gave_up;
    by_messages += history.by_messages;
    silent += history.silent_checks;
  }
  if (given != nullptr) return;
  // The histories are about what they are about.
  EXPECT_GT(met, last * 5);
  EXPECT_GT(ran, last / 2);
  EXPECT_GT(met_for_checks, last / 2);
  EXPECT_GT(beside, last / 8);
  EXPECT_GT(gave_up, last / 10);
  EXPECT_GT(by_messages, last * 5);
  EXPECT_GT(silent, last);
}

}  // namespace
}  // namespace hvd::collective

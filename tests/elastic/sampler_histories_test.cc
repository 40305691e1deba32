// Random histories of whole jobs: workers are lost in the middle of a round or of a commit, leave, arrive,
// join early; and at the end of it each sample was trained on once an epoch, wherever the model came from.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "elastic/sampler.h"

namespace hvd::elastic {
namespace {

/// What a worker has in its state: the sampler's bytes and, for the model, which samples it was trained on.
struct State {
  std::array<uint8_t, Sampler::kSavedBytes> sampler{};
  std::vector<int> trained;
  bool operator==(const State&) const = default;
};

struct Member {
  explicit Member(const SamplerConfig& config)
      : sampler(std::make_unique<Sampler>(config)), trained(config.samples) {
    commit.sampler = sampler->save();
    commit.trained = trained;
  }
  State live() const { return {sampler->save(), trained}; }
  void take(const State& state) {
    sampler->load(state.sampler);
    trained = state.trained;
  }

  std::unique_ptr<Sampler> sampler;
  std::vector<int> trained;
  State commit;
  uint64_t revision = 0;
  bool has_state = false;
  bool joined = false;
  std::optional<Batch> ahead;                        // what a loader was given last
  std::map<uint64_t, std::vector<uint64_t>> loaded;  // by position
};

class Simulation {
 public:
  Simulation(uint64_t seed, uint64_t epochs) : random_(seed), epochs_(epochs) {
    config_.samples = 1 + pick(chance(3) ? 8 : 120);
    config_.batch_size = 1 + pick(7);
    config_.seed = random_();
    config_.in_order = chance(8);
    if (chance(3)) config_.padding = chance(2) ? HVD_PADDING_DROP : HVD_PADDING_REPEAT;
    const uint64_t size = 1 + pick(7);
    for (uint64_t i = 0; i < size; ++i) members_.emplace_back(config_);
    form();
  }

  void run() {
    while (!done_ && !::testing::Test::HasFatalFailure()) step();
  }
  const SamplerConfig& config() const { return config_; }
  int losses = 0, resets = 0, joins = 0, partial_commits = 0;

 private:
  uint64_t pick(uint64_t below) { return random_() % below; }
  bool chance(uint64_t one_in) { return pick(one_in) == 0; }
  Place place(size_t rank) const {
    return {generation_, static_cast<int32_t>(rank), static_cast<int32_t>(members_.size())};
  }
  Member& root() {
    return *std::max_element(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
      return std::pair(a.has_state, a.revision) < std::pair(b.has_state, b.revision);
    });
  }

  /// A new generation and its sync: who has the highest revision, lowest rank first, gives its commit to all.
  void form() {
    ++generation_;
    const Member& from = root();
    const State state = from.commit;
    const uint64_t revision = from.revision;
    for (Member& member : members_) {
      member.take(state);
      member.commit = state;
      member.revision = revision;
      member.has_state = true;
      member.joined = false;
    }
  }

  void load_ahead(size_t rank) {
    Member& member = members_[rank];
    std::vector<uint64_t> indices(config_.batch_size);
    Batch batch;
    try {
      batch = member.sampler->next(place(rank), member.ahead ? &*member.ahead : nullptr, indices);
    } catch (const Error&) {  // stale: begin again
      member.loaded.clear();
      member.ahead.reset();
      batch = member.sampler->next(place(rank), nullptr, indices);
    }
    indices.resize(batch.count);
    member.ahead = batch;
    member.loaded[batch.position] = indices;
  }

  void step() {
    // A round, as far as it goes: the loss of a worker may come when only some have the sum.
    std::vector<int> sum(config_.samples);
    uint64_t total = 0, counted = 0;
    std::vector<Batch> batches(members_.size());
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      Member& member = members_[rank];
      if (member.joined) continue;
      if (chance(4)) load_ahead(rank);
      std::vector<uint64_t> indices(config_.batch_size);
      batches[rank] = member.sampler->next(place(rank), nullptr, indices);
      indices.resize(batches[rank].count);
      total = batches[rank].total;
      ASSERT_TRUE(!member.ahead || member.ahead->generation != generation_ ||
                  member.ahead->epoch != batches[rank].epoch ||
                  !member.loaded.contains(batches[rank].position) ||
                  member.loaded[batches[rank].position] == indices)
          << "loaded ahead was something else";
      counted += indices.size();
      for (const uint64_t index : indices) ++sum[index];
      if (total > 0 && indices.empty() && chance(2)) {
        member.sampler->record(place(rank), batches[rank]);
        member.joined = true;
        ++joins;
      }
    }
    ASSERT_EQ(counted, total);
    if (total == 0) return end_epoch();
    const bool loss = members_.size() > 1 && chance(6);
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      Member& member = members_[rank];
      if (member.joined || (loss && chance(2))) continue;
      for (size_t i = 0; i < sum.size(); ++i) member.trained[i] += sum[i];
      member.sampler->record(place(rank), batches[rank]);
    }
    if (loss) return lose();
    expect_equal();
    if (!chance(3)) return;
    if (chance(6)) return change(false);
    commit();
  }

  void commit() {
    const bool loss = members_.size() > 1 && chance(6);
    for (Member& member : members_) {
      if (member.joined || (loss && chance(2))) continue;
      member.commit = member.live();
      ++member.revision;
    }
    partial_commits += loss ? 1 : 0;
    if (loss) return lose();
    if (chance(4)) change(true);
  }

  void lose() {
    ++losses;
    const uint64_t lost = 1 + pick(members_.size() - 1);
    // Contract 5: while a holder of the newest commit lives, it lives.
    for (uint64_t i = 0; i < lost; ++i)
      members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(pick(members_.size())));
    for (Member& member : members_) member.take(member.commit);
    if (chance(3)) arrive();
    form();
  }

  /// A planned change, at a commit or at a check: see RunLoop::keep_live_values.
  void change(bool at_commit) {
    ++resets;
    for (Member& member : members_) {
      if (!member.joined && at_commit) continue;
      member.commit = member.live();
      if (!member.joined) ++member.revision;
    }
    const State kept = root().commit;
    for (const Member& member : members_) {
      if (!member.joined) { ASSERT_TRUE(member.live() == kept) << "who had joined became the root"; }
    }
    if (chance(2)) arrive();
    // Hosts are removed; one of those that were not in a join stays, or nobody would have the newest.
    for (size_t i = members_.size(); i-- > 0;) {
      const auto current = std::count_if(members_.begin(), members_.end(),
                                         [&](const Member& m) { return m.has_state && m.commit == kept; });
      if (chance(3) && (current > 1 || !(members_[i].commit == kept)))
        members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    form();
    for (const Member& member : members_) ASSERT_TRUE(member.live() == kept) << "a planned change lost work";
  }

  void arrive() {
    for (uint64_t i = 1 + pick(3); i > 0; --i) members_.emplace_back(config_);
  }

  void expect_equal() {
    const Member* first = nullptr;
    for (const Member& member : members_) {
      if (member.joined) continue;
      if (first == nullptr) first = &member;
      ASSERT_EQ(member.sampler->save(), first->sampler->save()) << "survivors' digests would differ";
      ASSERT_EQ(member.trained, first->trained);
    }
  }

  void end_epoch() {
    // Those who joined early take the model of who joined last.
    const auto last =
        std::find_if(members_.begin(), members_.end(), [](const Member& m) { return !m.joined; });
    const State state = last->live();
    const uint64_t epoch = last->sampler->progress(place(0)).epoch;
    const auto done = static_cast<int>(epoch) + 1;
    size_t off = 0;
    for (const int count : state.trained) {
      if (config_.padding == HVD_PADDING_NONE) { ASSERT_EQ(count, done); }
      if (config_.padding == HVD_PADDING_REPEAT) { ASSERT_GE(count, done); }
      if (config_.padding == HVD_PADDING_DROP) { ASSERT_LE(count, done); }
      off += static_cast<size_t>(std::abs(count - done));
    }
    // At most what one last round adds or leaves out in each epoch.
    ASSERT_LE(off, static_cast<size_t>(done) * 40);
    for (Member& member : members_) {
      member.trained = state.trained;
      member.sampler->set_epoch(epoch + 1);
      member.joined = false;
    }
    done_ = epoch + 1 == epochs_;
    expect_equal();
  }

  std::mt19937_64 random_;
  const uint64_t epochs_;
  SamplerConfig config_;
  std::vector<Member> members_;  // by rank
  uint64_t generation_ = 0;
  bool done_ = false;
};

TEST(SamplerHistories, EachSampleOnceAnEpochWhateverHappens) {
  int losses = 0, resets = 0, joins = 0, partial_commits = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    Simulation simulation(seed, 3);
    simulation.run();
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << ": " << Sampler(simulation.config()).describe();
    losses += simulation.losses;
    resets += simulation.resets;
    joins += simulation.joins;
    partial_commits += simulation.partial_commits;
  }
  // The histories are what they are meant to be.
  EXPECT_GT(losses, 3000);
  EXPECT_GT(resets, 1000);
  EXPECT_GT(joins, 1000);
  EXPECT_GT(partial_commits, 300);
}

}  // namespace
}  // namespace hvd::elastic

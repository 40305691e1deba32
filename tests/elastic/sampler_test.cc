// Rounds, epochs, padding and stale batches, against a model that deals real lists.
#include "elastic/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support.h"

namespace hvd::elastic {
namespace {

using Indices = std::vector<uint64_t>;

struct Dealt {
  Batch batch;
  Indices indices;
};

Dealt next(const Sampler& sampler, const Place& place, const Batch* after = nullptr) {
  Dealt dealt;
  dealt.indices.resize(sampler.config().batch_size);
  dealt.batch = sampler.next(place, after, dealt.indices);
  dealt.indices.resize(dealt.batch.count);
  return dealt;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code, HVD_INVALID);
    return e.status().message;
  }
  return "not refused";
}

/// What the sampler does by arithmetic, done as one would by hand: the samples that are left are dealt to the
/// ranks like cards, and each rank's batches are taken from its own stack. A change of size deals again what
/// is left.
class Cards {
 public:
  Cards(const SamplerConfig& config, uint64_t epoch) : config_(config) {
    const Permutation order(config.samples, config.seed, epoch);
    for (uint64_t i = 0; i < config.samples; ++i) all_.push_back(config.in_order ? i : order[i]);
    left_ = all_;
  }

  void deal(size_t size) {
    Indices cards = left_;
    if (config_.padding == HVD_PADDING_DROP) cards.resize(cards.size() / size * size);
    for (size_t i = 0; config_.padding == HVD_PADDING_REPEAT && cards.size() % size != 0; ++i)
      cards.push_back(all_[i % all_.size()]);
    stacks_.assign(size, {});
    for (size_t i = 0; i < cards.size(); ++i) stacks_[i % size].push_back(cards[i]);
  }

  /// Each rank's next batch.
  std::vector<Indices> round() const {
    std::vector<Indices> batches;
    for (const Indices& stack : stacks_) {
      const auto count = static_cast<std::ptrdiff_t>(std::min<size_t>(config_.batch_size, stack.size()));
      batches.emplace_back(stack.begin(), stack.begin() + count);
    }
    return batches;
  }

  void take() {
    const std::vector<Indices> batches = round();
    for (size_t rank = 0; rank < stacks_.size(); ++rank) {
      Indices& stack = stacks_[rank];
      stack.erase(stack.begin(), stack.begin() + static_cast<std::ptrdiff_t>(batches[rank].size()));
      for (const uint64_t sample : batches[rank]) std::erase(left_, sample);  // a repeated one is not there
    }
  }

  size_t left() const { return left_.size(); }

 private:
  const SamplerConfig config_;
  Indices all_, left_;
  std::vector<Indices> stacks_;
};

TEST(Sampler, DealsAsOneWouldDealCards) {
  std::mt19937_64 random(20261121);
  const auto up_to = [&](uint64_t most) { return 1 + random() % most; };
  for (int history = 0; history < 4000; ++history) {
    SamplerConfig config;
    config.samples = up_to(history % 3 == 0 ? 12 : 200);
    config.batch_size = up_to(9);
    config.seed = random();
    config.in_order = random() % 8 == 0;
    config.padding = static_cast<hvd_padding>(random() % 3);
    Sampler sampler(config);
    uint64_t generation = 0;
    for (uint64_t epoch = 0; epoch < 3; ++epoch) {
      sampler.set_epoch(epoch);
      Cards cards(config, epoch);
      auto size = static_cast<int32_t>(up_to(9));
      ++generation;
      cards.deal(static_cast<size_t>(size));
      while (true) {
        const std::vector<Indices> expected = cards.round();
        const SamplerProgress progress = sampler.progress({generation, 0, size});
        ASSERT_EQ(progress.processed, config.samples - cards.left());
        uint64_t total = 0;
        for (int32_t rank = 0; rank < size; ++rank) {
          const Dealt dealt = next(sampler, {generation, rank, size});
          ASSERT_EQ(dealt.indices, expected[static_cast<size_t>(rank)])
              << "history " << history << " epoch " << epoch << " rank " << rank << " of " << size << ": "
              << sampler.describe();
          total += dealt.batch.count;
        }
        const Batch batch = next(sampler, {generation, 0, size}).batch;
        ASSERT_EQ(batch.total, total);
        ASSERT_EQ(progress.rounds > 0, total > 0);
        if (total == 0) break;
        sampler.record({generation, 0, size}, batch);
        ASSERT_EQ(sampler.progress({generation, 0, size}).rounds, progress.rounds - 1);
        cards.take();
        if (random() % 4 == 0) {
          size = static_cast<int32_t>(up_to(9));
          ++generation;
          cards.deal(static_cast<size_t>(size));
        }
      }
      if (config.padding != HVD_PADDING_DROP) {
        ASSERT_EQ(sampler.progress({0, 0, 1}).processed, config.samples);
      }
    }
  }
}

TEST(Sampler, LooksAheadAsFarAsTheEpochGoes) {
  SamplerConfig config{103, 4, 9, false, HVD_PADDING_NONE};
  Sampler sampler(config), ahead(config);
  const Place place{1, 2, 3};
  Dealt seen = next(ahead, place);
  for (int i = 0; i < 12; ++i) {
    const Dealt expected = next(sampler, place);
    EXPECT_EQ(seen.indices, expected.indices);
    EXPECT_EQ(seen.batch.total, expected.batch.total);
    sampler.record(place, expected.batch);
    if (i == 3) {  // a record in between does not matter
      ahead.record(place, next(ahead, place).batch);
    }
    const Batch last = seen.batch;
    seen = next(ahead, place, &last);
  }
  EXPECT_EQ(seen.batch.total, 0U);
}

TEST(Sampler, ALoaderGoesAheadInAThreadOfItsOwn) {
  const SamplerConfig config{5003, 4, 9, false, HVD_PADDING_NONE};
  Sampler sampler(config);
  const Place place{1, 1, 3};
  test::Watched<std::vector<Dealt>> loaded;
  std::thread loader([&] {
    std::optional<Batch> last;
    do {
      const Dealt dealt = next(sampler, place, last ? &*last : nullptr);
      last = dealt.batch;
      loaded.update([&](auto& all) { all.push_back(dealt); });
    } while (last->total > 0);
  });
  const Sampler alone(config);
  std::optional<Batch> last;
  for (size_t i = 0; !last || last->total > 0; ++i) {
    const bool there = loaded.wait([&](auto& all) { return all.size() > i; });
    EXPECT_TRUE(there);
    if (!there) break;
    const Dealt dealt = loaded.get()[i];
    EXPECT_EQ(dealt.indices, next(alone, place, last ? &*last : nullptr).indices);
    sampler.record(place, dealt.batch);
    last = dealt.batch;
  }
  loader.join();
  EXPECT_EQ(sampler.progress(place).processed, config.samples);
}

TEST(Sampler, AStaleBatchIsRefused) {
  Sampler sampler({100, 5, 1, false, HVD_PADDING_NONE});
  const Place before{7, 1, 3}, now{8, 0, 2};
  const Dealt first = next(sampler, before);
  const Dealt second = next(sampler, before, &first.batch);
  sampler.record(before, first.batch);
  const auto at_start = sampler.save();
  // Recorded twice; too early; of another generation; of another epoch.
  EXPECT_NE(refusal([&] { sampler.record(before, first.batch); }).find("15 samples processed"),
            std::string::npos);
  const Dealt third = next(sampler, before, &second.batch);
  refusal([&] { sampler.record(before, third.batch); });
  const std::string text = refusal([&] { sampler.record(now, second.batch); });
  EXPECT_NE(text.find("dealt in generation 7"), std::string::npos) << text;
  EXPECT_NE(text.find("generation 8"), std::string::npos) << text;
  EXPECT_NE(refusal([&] { next(sampler, now, &second.batch); }).find("stale"), std::string::npos);
  EXPECT_EQ(next(sampler, before, &first.batch).indices,
            second.indices);  // recorded, but what follows is not
  Batch strange = second.batch;
  strange.position += 1;
  EXPECT_NE(refusal([&] { next(sampler, before, &strange); }).find("stale"), std::string::npos);
  strange.position = ~uint64_t{0};
  EXPECT_NE(refusal([&] { next(sampler, before, &strange); }).find("stale"), std::string::npos);
  EXPECT_EQ(sampler.save(), at_start);
  sampler.record(before, second.batch);
  EXPECT_NE(refusal([&] { next(sampler, before, &first.batch); }).find("stale"), std::string::npos);
  sampler.set_epoch(1);
  EXPECT_NE(refusal([&] { next(sampler, before, &second.batch); }).find("epoch 1"), std::string::npos);
  EXPECT_NE(refusal([&] { sampler.record(before, second.batch); }).find("epoch 1"), std::string::npos);
}

TEST(Sampler, TheSameEpochAgainKeepsWhatWasProcessed) {
  Sampler sampler({100, 5, 1, false, HVD_PADDING_NONE});
  const Place place{1, 0, 2};
  sampler.set_epoch(4);
  sampler.record(place, next(sampler, place).batch);
  sampler.set_epoch(4);
  EXPECT_EQ(sampler.progress(place).processed, 10U);
  sampler.set_epoch(3);
  EXPECT_EQ(sampler.progress(place).processed, 0U);
  EXPECT_EQ(sampler.progress(place).epoch, 3U);
}

TEST(Sampler, SavedBytesContinueWithOtherSizes) {
  Sampler sampler({1000, 8, 5, false, HVD_PADDING_NONE});
  sampler.set_epoch(3);
  Place place{1, 0, 4};
  sampler.record(place, next(sampler, place).batch);
  const auto bytes = sampler.save();
  Sampler other({1000, 100, 5, false, HVD_PADDING_DROP});
  other.load(bytes);
  EXPECT_EQ(other.save(), bytes);
  place = {1, 0, 1};
  EXPECT_EQ(next(other, place).batch.position, 32U);
  EXPECT_EQ(next(other, place).indices[0], Permutation(1000, 5, 3)[32]);
}

TEST(Sampler, BytesOfAnotherKindAreRefusedAndChangeNothing) {
  const SamplerConfig config{1000, 8, 5, false, HVD_PADDING_NONE};
  Sampler sampler(config);
  const Place place{1, 0, 4};
  sampler.record(place, next(sampler, place).batch);
  const auto bytes = sampler.save();
  const auto saved_by = [](SamplerConfig c) { return Sampler(c).save(); };
  for (const SamplerConfig& c :
       {SamplerConfig{999, 8, 5, false, 0}, {1000, 8, 6, false, 0}, {1000, 8, 5, true, 0}}) {
    const std::string text = refusal([&] { sampler.load(saved_by(c)); });
    EXPECT_NE(text.find("expected that of a sampler of 1000 samples"), std::string::npos) << text;
  }
  for (size_t length = 0; length < bytes.size(); ++length)
    refusal([&] { sampler.load(std::span(bytes).first(length)); });
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    auto damaged = bytes;
    for (uint64_t k = 0; k < 1 + random() % 3; ++k)
      damaged[random() % damaged.size()] = static_cast<uint8_t>(random());
    try {
      sampler.load(damaged);
      // Progress may be any; nothing else may.
      EXPECT_LE(sampler.progress(place).processed, 1000U);
      sampler.load(bytes);
    } catch (const Error& e) { EXPECT_EQ(e.status().code, HVD_INVALID); }
    ASSERT_EQ(sampler.save(), bytes);
  }
}

TEST(Sampler, LimitsAreChecked) {
  const auto refused = [](const SamplerConfig& config) { return refusal([&] { Sampler sampler(config); }); };
  EXPECT_NE(refused({0, 1, 0, false, 0}).find("0 samples"), std::string::npos);
  EXPECT_NE(refused({(uint64_t{1} << 62U) + 1, 1, 0, false, 0}).find("expected 1 to 4611686018427387904"),
            std::string::npos);
  EXPECT_NE(refused({1, 0, 0, false, 0}).find("batch_size is 0"), std::string::npos);
  EXPECT_NE(refused({1, uint64_t{1} << 31U, 0, false, 0}).find("batch_size"), std::string::npos);
  EXPECT_NE(refused({1, 1, 0, false, 3}).find("padding is 3"), std::string::npos);
  EXPECT_NE(refused({1, 1, 0, false, -1}).find("padding is -1"), std::string::npos);
  // The largest of all: no sum overflows.
  const Sampler largest({uint64_t{1} << 62U, (uint64_t{1} << 31U) - 1, 1, false, HVD_PADDING_REPEAT});
  const Place place{1, 2147483646, 2147483647};
  Indices few(10);
  const std::string text = refusal([&] { largest.next(place, nullptr, few); });
  EXPECT_NE(text.find("room for 10 indices: expected 2147483647"), std::string::npos) << text;
  EXPECT_EQ(largest.progress(place).rounds, 2U);
}

}  // namespace
}  // namespace hvd::elastic

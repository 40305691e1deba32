// The sampler's arithmetic, and its saved form.
#include "elastic/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace hvd::elastic {
namespace {

// With sizes that fit 31 bits, positions and sums of them fit 64 (see round_size).
constexpr uint64_t kMaxBatch = (uint64_t{1} << 31U) - 1;

constexpr std::array<uint8_t, 8> kMagic = {'h', 'v', 'd', 's', 'm', 'p', 'l', 1};

[[noreturn]] void unfit(const std::string& message) { throw Error(HVD_INVALID, message); }

const SamplerConfig& checked(const SamplerConfig& config) {
  if (config.samples < 1 || config.samples > Permutation::kMaxSize) {
    unfit(fmt::format("a sampler of {} samples: expected 1 to {}", config.samples, Permutation::kMaxSize));
  }
  if (config.batch_size < 1 || config.batch_size > kMaxBatch) {
    unfit(fmt::format("a sampler's batch_size is {}: expected 1 to {}", config.batch_size, kMaxBatch));
  }
  if (config.padding < HVD_PADDING_NONE || config.padding > HVD_PADDING_DROP) {
    unfit(fmt::format("a sampler's padding is {}: expected {} (HVD_PADDING_NONE) to {} (HVD_PADDING_DROP)",
                      config.padding, int{HVD_PADDING_NONE}, int{HVD_PADDING_DROP}));
  }
  return config;
}

}  // namespace

Sampler::Sampler(const SamplerConfig& config)
    : config_(checked(config)), order_(config.samples, config.seed, 0) {}

std::string Sampler::describe() const {
  static constexpr std::array<const char*, 3> kPaddings = {"", ", padded by repeats", ", remainder dropped"};
  const std::string order = config_.in_order ? "in order" : fmt::format("shuffled by seed {}", config_.seed);
  return fmt::format("sampler of {} samples in batches of {}, {}{}", config_.samples, config_.batch_size,
                     order, kPaddings.at(static_cast<size_t>(config_.padding)));
}

uint64_t Sampler::total_at(uint64_t position, int32_t size) const {
  const auto ranks = static_cast<uint64_t>(size);
  const uint64_t left = std::min(config_.samples - position, round_size(size));
  if (config_.padding == HVD_PADDING_REPEAT) return (left + ranks - 1) / ranks * ranks;
  if (config_.padding == HVD_PADDING_DROP) return left / ranks * ranks;
  return left;
}

Batch Sampler::next(const Place& place, const Batch* after, std::span<uint64_t> indices) const {
  std::unique_lock lock(mutex_);
  Batch batch{place.generation, epoch_, processed_, 0, 0};
  if (after != nullptr) {
    const uint64_t round = round_size(place.size);
    if (after->position <= config_.samples)
      batch.position = std::min(after->position + round, config_.samples);
    // It may be recorded by now: what follows it must not be.
    const bool current = after->generation == place.generation && after->epoch == epoch_ &&
                         after->position <= config_.samples && batch.position >= processed_ &&
                         ((batch.position - processed_) % round == 0 || batch.position == config_.samples);
    if (!current) {
      unfit(fmt::format(
          "sampler: the batch at position {} of epoch {} was dealt in generation {} and is stale: it is "
          "generation {} now, epoch {}, {} samples processed; expected NULL, to begin with the next",
          after->position, after->epoch, after->generation, place.generation, epoch_, processed_));
    }
  }
  const Permutation order = order_;
  lock.unlock();

  batch.total = total_at(batch.position, place.size);
  const auto ranks = static_cast<uint64_t>(place.size), rank = static_cast<uint64_t>(place.rank);
  batch.count = batch.total / ranks + (rank < batch.total % ranks ? 1 : 0);
  if (batch.count > indices.size()) {
    unfit(fmt::format("sampler: there is room for {} indices: expected {} (batch_size {})", indices.size(),
                      batch.count, config_.batch_size));
  }
  for (uint64_t i = 0; i < batch.count; ++i) {
    // Beyond the end stands what padding repeats: the epoch's first samples.
    const uint64_t position = (batch.position + i * ranks + rank) % config_.samples;
    indices[i] = config_.in_order ? position : order[position];
  }
  return batch;
}

void Sampler::record(const Place& place, const Batch& batch) {
  std::lock_guard lock(mutex_);
  if (batch.generation != place.generation || batch.epoch != epoch_ || batch.position != processed_) {
    unfit(fmt::format(
        "sampler: the batch at position {} of epoch {}, dealt in generation {}, can't be recorded: it is "
        "generation {}, epoch {}, {} samples processed; expected the batch that comes next",
        batch.position, batch.epoch, batch.generation, place.generation, epoch_, processed_));
  }
  processed_ += std::min(total_at(processed_, place.size), config_.samples - processed_);
}

void Sampler::set_epoch(uint64_t epoch) {
  std::lock_guard lock(mutex_);
  if (epoch == epoch_) return;
  epoch_ = epoch;
  processed_ = 0;
  order_ = Permutation(config_.samples, config_.seed, epoch);
}

SamplerProgress Sampler::progress(const Place& place) const {
  std::lock_guard lock(mutex_);
  const auto ranks = static_cast<uint64_t>(place.size);
  uint64_t left = config_.samples - processed_;
  if (config_.padding == HVD_PADDING_DROP) left = left / ranks * ranks;
  return {epoch_, processed_, (left + round_size(place.size) - 1) / round_size(place.size)};
}

std::array<uint8_t, Sampler::kSavedBytes> Sampler::save() const {
  std::array<uint8_t, kSavedBytes> bytes{};
  std::copy(kMagic.begin(), kMagic.end(), bytes.begin());
  size_t at = kMagic.size();
  const auto put = [&](uint64_t value) {
    for (unsigned shift = 0; shift < 64; shift += 8) bytes[at++] = static_cast<uint8_t>(value >> shift);
  };
  std::lock_guard lock(mutex_);
  put(config_.samples);
  put(config_.in_order ? 0 : 1);
  put(config_.in_order ? 0 : config_.seed);
  put(epoch_);
  put(processed_);
  return bytes;
}

void Sampler::load(std::span<const uint8_t> bytes) {
  if (bytes.size() != kSavedBytes || !std::equal(kMagic.begin(), kMagic.end(), bytes.begin())) {
    unfit(fmt::format("sampler: {} bytes that no sampler of this version saved: expected {} bytes",
                      bytes.size(), kSavedBytes));
  }
  size_t at = kMagic.size();
  const auto take = [&] {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 8) value |= uint64_t{bytes[at++]} << shift;
    return value;
  };
  const uint64_t samples = take(), shuffled = take(), seed = take(), epoch = take(), processed = take();
  const bool zeros = std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end(),
                                 [](uint8_t byte) { return byte == 0; });
  if (shuffled > 1 || processed > samples || !zeros) unfit("sampler: the saved bytes are damaged");
  const bool same_order = config_.in_order ? shuffled == 0 : shuffled == 1 && seed == config_.seed;
  if (samples != config_.samples || !same_order) {
    unfit(fmt::format("sampler: saved was the progress through {} samples {}: expected that of a {}", samples,
                      shuffled == 0 ? "in order" : fmt::format("shuffled by seed {}", seed), describe()));
  }
  std::lock_guard lock(mutex_);
  if (epoch != epoch_) order_ = Permutation(config_.samples, config_.seed, epoch);
  epoch_ = epoch;
  processed_ = processed;
}

}  // namespace hvd::elastic

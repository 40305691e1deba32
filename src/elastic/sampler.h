// Deals the samples of a data set out to the ranks, each once in an epoch, through any change of size.
//
// An epoch is an order of the samples. All ranks together take it from the front, a round at a time: a round
// of `size` ranks is the next batch_size * size positions, dealt one by one to ranks 0 .. size-1. Ranks go
// through the rounds together, so what was processed is always a prefix of the order, whatever sizes the
// rounds had: one number, the same on every rank. A change of size needs no redealing and no communication.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>

#include "base/callback.h"
#include "base/status.h"
#include "elastic/permutation.h"
#include "hvd/sampler.h"

namespace hvd::elastic {

struct SamplerConfig {
  uint64_t samples = 0, batch_size = 0, seed = 0;
  bool in_order = false;
  hvd_padding padding = HVD_PADDING_NONE;
};

/// Where a worker stands when it asks.
struct Place {
  uint64_t generation = 0;
  int32_t rank = 0, size = 1;
};

/// One rank's part of a round. It follows from these numbers and the rank.
struct Batch {
  uint64_t generation = 0;  // in which it was dealt: it stands for rank and size
  uint64_t epoch = 0;
  uint64_t position = 0;  // where in the epoch's order the round begins
  uint64_t count = 0;     // samples of this rank
  uint64_t total = 0;     // samples of all ranks, those that padding repeats included; 0: the epoch is over
};

struct SamplerProgress {
  uint64_t epoch = 0, processed = 0, rounds = 0;  // rounds: left, for this size
};

/// Knows no worker: the caller says where it stands, so that a batch can never be one of an older generation.
/// Thread-safe. Bad arguments are thrown as Error(HVD_INVALID).
class Sampler {
 public:
  static constexpr size_t kSavedBytes = HVD_SAMPLER_SAVED_BYTES;

  explicit Sampler(const SamplerConfig& config);
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  const SamplerConfig& config() const { return config_; }
  /// "sampler of 1000 samples in batches of 8, shuffled by seed 3": what all ranks must agree on.
  std::string describe() const;

  /// The round that follows `after`, or the first that is not recorded. Writes this rank's samples to
  /// `indices`.
  Batch next(const Place& place, const Batch* after, std::span<uint64_t> indices) const;
  /// All ranks have processed this round: the first that was not recorded.
  void record(const Place& place, const Batch& batch);
  /// Another epoch, nothing of it processed; the same epoch changes nothing.
  void set_epoch(uint64_t epoch);
  SamplerProgress progress(const Place& place) const;

  /// The progress and what the order follows from, little-endian.
  std::array<uint8_t, kSavedBytes> save() const;
  /// Untouched if the bytes are not those of a sampler of the same samples in the same order. Batch size and
  /// padding may be others.
  void load(std::span<const uint8_t> bytes);

 private:
  /// Samples of the round that begins at a position.
  uint64_t total_at(uint64_t position, int32_t size) const;
  uint64_t round_size(int32_t size) const { return config_.batch_size * static_cast<uint64_t>(size); }

  const SamplerConfig config_;
  mutable std::mutex mutex_;
  uint64_t epoch_ = 0;      // guarded by mutex_
  uint64_t processed_ = 0;  // guarded by mutex_; length of the prefix, at most samples
  Permutation order_;       // guarded by mutex_; of epoch_
};

}  // namespace hvd::elastic

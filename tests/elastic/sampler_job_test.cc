// Whole jobs that deal samples while workers are lost and arrive. Each worker keeps, beside the sampler, how often
// each sample was trained on: what was counted and what the sampler says must go back and forth together.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <numeric>

#include "elastic/job.h"

namespace hvd::test {
namespace {

constexpr uint64_t kSamples = 611;  // no multiple of a round

struct Outcome {
  uint64_t worker = 0;
  hvd_status run = HVD_OK;
  std::string message;
  std::vector<int64_t> counts;
};

hvd_tensor tensor_of(std::vector<int64_t>& values) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = values.data();
  tensor.dtype = HVD_INT64;
  tensor.ndim = 1;
  tensor.shape[0] = static_cast<int64_t>(values.size());
  return tensor;
}

/// Counts, over all ranks, how often each sample came, in `epochs` epochs.
class Counter {
 public:
  using Hook = std::function<hvd_status(Counter&)>;
  Counter(const WorkerSeat& s, Watched<std::vector<Outcome>>& o, uint64_t e)
      : seat(s), outcomes(o), epochs(e) {}

  void run(hvd_options* options) {
    Outcome outcome;
    outcome.worker = seat.worker;
    hvd_error error = HVD_ERROR_INIT;
    outcome.run = hvd_init(options, &context, &error);
    if (outcome.run == HVD_OK) outcome.run = register_all(&error);
    if (outcome.run == HVD_OK) {
      outcome.run = hvd_run(
          context, state, [](void* self) { return static_cast<Counter*>(self)->train(); }, this, &error);
    }
    outcome.message = error.message;
    outcome.counts = counts;
    outcomes.update([&](auto& all) { all.push_back(outcome); });
    if (before_end) before_end();
    if (context != nullptr) hvd_shutdown(context, 60000, nullptr);
    hvd_sampler_destroy(sampler);
    hvd_state_destroy(state);
    hvd_destroy(context);
  }

  const WorkerSeat seat;
  Watched<std::vector<Outcome>>& outcomes;
  const uint64_t epochs;
  uint64_t seed = 5, commit_every = 3;
  Hook before_round;
  std::function<void()> before_end;
  hvd_context* context = nullptr;
  hvd_state* state = nullptr;
  hvd_sampler* sampler = nullptr;
  uint64_t round = 0;
  std::vector<int64_t> counts = std::vector<int64_t>(kSamples);

 private:
  hvd_status register_all(hvd_error* error) {
    hvd_sampler_options options{};
    options.struct_size = sizeof(options);
    options.samples = kSamples;
    options.batch_size = 8;
    options.seed = seed;
    hvd_tensor tensor = tensor_of(counts);
    hvd_status status = hvd_state_create(context, &state, error);
    if (status == HVD_OK) status = hvd_sampler_create(context, &options, &sampler, error);
    if (status == HVD_OK) status = hvd_state_add_sampler(state, "sampler", sampler, error);
    if (status == HVD_OK) status = hvd_state_add_tensor(state, "counts", &tensor, error);
    if (status == HVD_OK) status = hvd_state_add_value(state, "round", &round, sizeof(round), error);
    return status;
  }

  hvd_status train() {
    std::vector<uint64_t> indices(8);
    std::vector<uint64_t> ahead(8);
    hvd_sampler_batch batch{}, following{};
    batch.struct_size = following.struct_size = sizeof(batch);
    while (true) {
      if (before_round) {
        if (hvd_status status = before_round(*this); status != HVD_OK) return status;
      }
      hvd_error error = HVD_ERROR_INIT;
      hvd_status status = hvd_sampler_next(sampler, nullptr, indices.data(), indices.size(), &batch, &error);
      EXPECT_EQ(status, HVD_OK) << error.message;
      if (status != HVD_OK) return status;
      if (batch.total == 0) {
        if (batch.epoch + 1 == epochs) return HVD_OK;
        EXPECT_EQ(hvd_sampler_set_epoch(sampler, batch.epoch + 1, nullptr), HVD_OK);
        continue;
      }
      EXPECT_EQ(batch.generation, hvd_generation(context));
      EXPECT_EQ(hvd_sampler_next(sampler, &batch, ahead.data(), ahead.size(), &following, nullptr), HVD_OK);
      std::vector<int64_t> seen(kSamples);
      for (uint64_t i = 0; i < batch.count; ++i) ++seen[indices[i]];
      hvd_tensor tensor = tensor_of(seen);
      status = hvd_allreduce(context, "seen", &tensor, &tensor, HVD_SUM, nullptr);
      if (status != HVD_OK) return status;
      EXPECT_EQ(static_cast<uint64_t>(std::accumulate(seen.begin(), seen.end(), int64_t{0})), batch.total);
      for (size_t i = 0; i < counts.size(); ++i) counts[i] += seen[i];
      status = hvd_sampler_record(sampler, &batch, &error);
      EXPECT_EQ(status, HVD_OK) << error.message;
      if (++round % commit_every != 0) continue;
      if (status = hvd_state_commit(state, nullptr); status != HVD_OK) return status;
    }
  }
};

void expect_each_sample_once_an_epoch(const std::vector<Outcome>& outcomes, size_t workers, int64_t epochs) {
  size_t done = 0;
  for (const Outcome& outcome : outcomes) {
    if (outcome.run != HVD_OK) continue;
    ++done;
    EXPECT_EQ(outcome.counts, std::vector<int64_t>(kSamples, epochs)) << "worker " << outcome.worker;
  }
  EXPECT_EQ(done, workers);
}

hvd_status lost(Counter& counter) {
  EXPECT_EQ(hvd_abort(counter.context, "the test says so", nullptr), HVD_OK);
  return HVD_CLOSED;
}

TEST(SamplerJob, EachSampleOnceAnEpochThoughWorkersAreLost) {
  for (const uint64_t victim : {1U, 3U}) {
    Watched<std::vector<Outcome>> outcomes;
    Job job("a:4", {{"np", "4"}, {"min_np", "2"}, {"restart", "false"}},
            [&](const WorkerSeat& seat, hvd_options* options) {
              Counter counter(seat, outcomes, 3);
              counter.before_round = [&](Counter& c) {
                // Rounds 11 and 29 follow commits at 9 and 27: two rounds are lost each time.
                if (c.seat.worker == victim && c.round == 11) return lost(c);
                if (c.seat.worker == 4 && c.round == 29) return lost(c);
                return hvd_status{HVD_OK};
              };
              counter.run(options);
            });
    job.start();
    std::string sentence;
    EXPECT_EQ(job.wait(&sentence), HVD_OK) << sentence;
    expect_each_sample_once_an_epoch(outcomes.get(), 2, 3);
    EXPECT_EQ(job.status().resets, 2);
  }
}

TEST(SamplerJob, EachSampleOnceAnEpochThoughWorkersComeAndGo) {
  Watched<std::vector<Outcome>> outcomes;
  Job* running = nullptr;
  std::atomic<bool> grown{false}, shrunk{false};
  Job job("a:2", {{"np", "2"}, {"max_np", "3"}}, [&](const WorkerSeat& seat, hvd_options* options) {
    Counter counter(seat, outcomes, 200);
    counter.commit_every = 2;
    counter.before_round = [&](Counter& c) {
      const int32_t size = hvd_size(c.context);
      if (c.round >= 5 && size == 2 && !grown.exchange(true)) running->set_hosts("a:2,b:1");
      if (size == 3 && !shrunk.exchange(true)) running->set_hosts("a:1,b:1");
      return hvd_status{HVD_OK};
    };
    counter.run(options);
  });
  running = &job;
  job.start();
  std::string sentence;
  EXPECT_EQ(job.wait(&sentence), HVD_OK) << sentence;
  EXPECT_TRUE(grown && shrunk);
  expect_each_sample_once_an_epoch(outcomes.get(), 2, 200);
}

// Contract 9.
TEST(SamplerJob, RanksWithOtherOptionsAreAMismatch) {
  Watched<std::vector<Outcome>> outcomes;
  Job job("a:2", {{"np", "2"}, {"restart", "false"}, {"elastic_timeout", "0.5"}},
          [&](const WorkerSeat& seat, hvd_options* options) {
            Counter counter(seat, outcomes, 1);
            counter.seed = seat.worker;
            // Whoever leaves first ends the job: not before both have their answer.
            counter.before_end = [&] {
              EXPECT_TRUE(outcomes.wait([](auto& all) { return all.size() == 2; }));
            };
            counter.run(options);
          });
  job.start();
  std::string sentence;
  EXPECT_EQ(job.wait(&sentence), HVD_JOB_FAILED);
  for (const Outcome& outcome : outcomes.get()) {
    EXPECT_EQ(hvd_status_name(outcome.run), std::string("HVD_MISMATCH")) << outcome.message;
    EXPECT_NE(outcome.message.find(
                  "key 'sampler' is sampler of 611 samples in batches of 8, shuffled by seed 1 on rank 0 "
                  "and sampler of 611 samples in batches of 8, shuffled by seed 2 on rank 1"),
              std::string::npos)
        << outcome.message;
  }
}

}  // namespace
}  // namespace hvd::test

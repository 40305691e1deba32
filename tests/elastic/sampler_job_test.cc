// Whole jobs that deal samples while workers are lost and arrive. Each worker keeps, beside the sampler, how
// often each sample was trained on: what was counted and what the sampler says must go back and forth
// together.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <numeric>

#include "elastic/job.h"
#include "hvd/sampler.h"

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
  tensor.dtype = HVD_DTYPE_INT64;
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
    if (context != nullptr) hvd_shutdown(context, 60 * HVD_SECOND, nullptr);
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
      status = hvd_allreduce(context, "seen", &tensor, &tensor, HVD_REDUCTION_SUM, nullptr);
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

// Contract 5: rank 0 is in a join when hosts change. The others went on without it, and theirs is the newest
// state whether they left at a commit or at a check.
TEST(SamplerJob, WhoHadJoinedTakesTheNewestState) {
  for (const bool at_commit : {true, false}) {
    struct Worker {
      hvd_context* context = nullptr;
      hvd_sampler* sampler = nullptr;
      hvd_state* state = nullptr;
      uint64_t step = 0, worker = 0;
      bool at_commit = false;
      std::function<void()> add_host;

      hvd_status train() {
        const bool again = hvd_size(context) == 3;
        const uint64_t last = step + 5;
        std::vector<uint64_t> indices(8);
        hvd_sampler_batch batch{};
        batch.struct_size = sizeof(batch);
        while (!again || step < last) {
          if (!again && worker == 1 && step == 3) return hvd_join(context, nullptr, nullptr);
          if (!again && worker == 2 && step == 5) add_host();
          int64_t one = 1;
          hvd_tensor tensor = HVD_TENSOR_INIT;
          tensor.data = &one;
          tensor.dtype = HVD_DTYPE_INT64;
          hvd_status status = hvd_allreduce(context, "one", &tensor, &tensor, HVD_REDUCTION_SUM, nullptr);
          if (status != HVD_OK) return status;
          EXPECT_EQ(hvd_sampler_next(sampler, nullptr, indices.data(), 8, &batch, nullptr), HVD_OK);
          EXPECT_EQ(hvd_sampler_record(sampler, &batch, nullptr), HVD_OK);
          ++step;
          status =
              at_commit ? hvd_state_commit(state, nullptr) : hvd_state_check_host_updates(state, nullptr);
          if (status != HVD_OK) return status;
        }
        return HVD_OK;
      }
    };
    Watched<std::vector<std::array<uint64_t, 3>>>
        seen;                // worker, step, processed at the start of generation 2
    Watched<uint64_t> left;  // worker 2's step when it left generation 1
    Job* running = nullptr;
    Job job("a:2", {{"np", "2"}, {"max_np", "3"}}, [&](const WorkerSeat& seat, hvd_options* options) {
      Worker w;
      w.worker = seat.worker;
      w.at_commit = at_commit;
      w.add_host = [&] { running->set_hosts("a:2,b:1"); };
      hvd_sampler_options samples{};
      samples.struct_size = sizeof(samples);
      samples.samples = uint64_t{1} << 40U;
      samples.batch_size = 8;
      HVD_ASSERT_OK(hvd_init(options, &w.context, error));
      HVD_ASSERT_OK(hvd_state_create(w.context, &w.state, error));
      HVD_ASSERT_OK(hvd_sampler_create(w.context, &samples, &w.sampler, error));
      HVD_ASSERT_OK(hvd_state_add_sampler(w.state, "sampler", w.sampler, error));
      HVD_ASSERT_OK(hvd_state_add_value(w.state, "step", &w.step, sizeof(w.step), error));
      struct Call {
        Worker& worker;
        decltype(seen)& starts;
        decltype(left)& leaves;
      } call{w, seen, left};
      HVD_ASSERT_OK(hvd_run(
          w.context, w.state,
          [](void* self) {
            const Call& call = *static_cast<Call*>(self);
            Worker& worker = call.worker;
            if (hvd_size(worker.context) == 3) {
              hvd_sampler_info info{};
              info.struct_size = sizeof(info);
              EXPECT_EQ(hvd_sampler_get_info(worker.sampler, &info, nullptr), HVD_OK);
              call.starts.update([&](auto& all) {
                all.push_back({worker.worker, worker.step, info.processed});
              });
            }
            const hvd_status status = worker.train();
            if (worker.worker == 2 && status == HVD_HOSTS_UPDATED)
              call.leaves.update([&](auto& step) { step = worker.step; });
            return status;
          },
          &call, error));
      HVD_ASSERT_OK(hvd_shutdown(w.context, 60 * HVD_SECOND, error));
      hvd_sampler_destroy(w.sampler);
      hvd_state_destroy(w.state);
      hvd_destroy(w.context);
    });
    running = &job;
    job.start();
    std::string sentence;
    EXPECT_EQ(job.wait(&sentence), HVD_OK) << sentence;
    ASSERT_EQ(seen.get().size(), 3U);
    EXPECT_GE(left.get(), 6U);
    for (const auto& [worker, step, processed] : seen.get()) {
      EXPECT_EQ(step, left.get()) << "worker " << worker;
      EXPECT_EQ(processed, left.get() * 16) << "worker " << worker;
    }
  }
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

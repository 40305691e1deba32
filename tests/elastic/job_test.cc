// The elastic loop through the C API, with a real driver, real connections and the Gloo backend.
#include "elastic/job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>

namespace hvd::test {
namespace {

hvd_tensor vector_of(std::vector<float>& values) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = values.data();
  tensor.dtype = HVD_DTYPE_FLOAT32;
  tensor.ndim = 1;
  tensor.shape[0] = static_cast<int64_t>(values.size());
  return tensor;
}

/// What a worker saw at the start of a call of its training function, and at the end.
struct Sight {
  uint64_t worker;
  int32_t rank, size;
  uint64_t generation;
  int64_t step;
};

struct Outcome {
  uint64_t worker = 0;
  hvd_status run = HVD_OK, shutdown = HVD_OK;
  std::string message, end;  // of run and of shutdown
  std::vector<float> weights;
  std::vector<hvd_recovery_info> recoveries;
};

struct Record {
  Watched<std::vector<Sight>> sights;
  Watched<std::map<uint64_t, int64_t>> steps;  // by worker
  Watched<std::vector<Outcome>> outcomes;
};

/// A worker that adds 1 to each weight in every step, by an allreduce whose average is 1.
class Trainer {
 public:
  using Hook = std::function<hvd_status(Trainer&)>;
  Trainer(const WorkerSeat& seat, Record& record, int64_t steps)
      : seat(seat), record(record), last_step(steps) {}

  void run(hvd_options* options) {
    Outcome outcome;
    outcome.worker = seat.worker;
    hvd_error error = HVD_ERROR_INIT;
    outcome.run = hvd_init(options, &context, &error);
    if (outcome.run == HVD_OK && after_init) outcome.run = after_init(*this);
    if (outcome.run == HVD_OK) {
      outcome.run = train_all(&error);
      hvd_error end = HVD_ERROR_INIT;
      outcome.shutdown = hvd_shutdown(context, 60 * HVD_SECOND, &end);
      outcome.end = end.message;
      size_t count = 0;
      hvd_get_recovery_count(context, &count, nullptr);
      for (size_t i = 0; i < count; ++i) {
        hvd_recovery_info recovery{};
        recovery.struct_size = sizeof(recovery);
        EXPECT_EQ(hvd_get_recovery(context, i, &recovery, nullptr), HVD_OK);
        outcome.recoveries.push_back(recovery);
      }
      hvd_state_destroy(state);
      hvd_destroy(context);
    }
    outcome.message = error.message;
    outcome.weights = weights;
    record.outcomes.update([&](auto& all) { all.push_back(outcome); });
  }

  const WorkerSeat seat;
  Record& record;
  int64_t last_step;
  Hook before_step, at_reset, after_init;
  hvd_context* context = nullptr;
  hvd_state* state = nullptr;
  std::vector<float> weights = std::vector<float>(1000, 0.0F);
  int64_t step = 0;
  bool only_check = false;

 private:
  hvd_status train_all(hvd_error* error) {
    hvd_tensor tensor = vector_of(weights);
    hvd_status status = hvd_state_create(context, &state, error);
    if (status == HVD_OK) status = hvd_state_add_tensor(state, "weights", &tensor, error);
    if (status == HVD_OK) status = hvd_state_add_value(state, "step", &step, sizeof(step), error);
    if (status == HVD_OK) {
      status = hvd_state_on_reset(
          state,
          [](void* self) -> int32_t {
            auto& trainer = *static_cast<Trainer*>(self);
            return trainer.at_reset ? trainer.at_reset(trainer) : 0;
          },
          this, nullptr, error);
    }
    if (status != HVD_OK) return status;
    return hvd_run(
        context, state, [](void* self) { return static_cast<Trainer*>(self)->train(); }, this, error);
  }

  hvd_status train() {
    const hvd_membership_info place = membership();
    record.sights.update([&](auto& all) {
      all.push_back({seat.worker, place.rank, place.size, place.generation, step});
    });
    while (step < last_step) {
      if (before_step) {
        if (hvd_status status = before_step(*this); status != HVD_OK) return status;
      }
      std::vector<float> gradient(weights.size(), 1.0F);
      hvd_tensor tensor = vector_of(gradient);
      hvd_status status =
          hvd_allreduce(context, "gradient", &tensor, &tensor, HVD_REDUCTION_AVERAGE, nullptr);
      if (status != HVD_OK) return status;
      for (size_t i = 0; i < weights.size(); ++i) weights[i] += gradient[i];
      ++step;
      record.steps.update([&](auto& steps) { steps[seat.worker] = step; });
      status = only_check ? hvd_state_check_host_updates(state, nullptr) : hvd_state_commit(state, nullptr);
      if (status != HVD_OK) return status;
    }
    return HVD_OK;
  }

  hvd_membership_info membership() const {
    hvd_membership_info place{};
    place.struct_size = sizeof(place);
    EXPECT_EQ(hvd_get_membership(context, &place, nullptr), HVD_OK);
    return place;
  }
};

/// At step 5 the hosts change once; training ends 10 steps after all are in, on every rank alike.
struct ChangeOfHosts {
  const std::string hosts;
  const int32_t size;
  Job* job = nullptr;
  std::atomic<bool> done{false};

  hvd_status before_step(Trainer& t) {
    if (t.step == 5 && !done.exchange(true)) job->set_hosts(hosts);
    if (hvd_size(t.context) == size && t.last_step == 1 << 30) t.last_step = t.step + 10;
    return HVD_OK;
  }
};

void run_to_the_end(Job& job) {
  job.start();
  std::string sentence;
  EXPECT_EQ(job.wait(&sentence), HVD_OK) << sentence;
}

void expect_trained(const Record& record, size_t workers, int64_t steps) {
  const auto outcomes = record.outcomes.get();
  size_t done = 0;
  for (const Outcome& outcome : outcomes) {
    if (outcome.run != HVD_OK) continue;
    ++done;
    EXPECT_EQ(hvd_status_name(outcome.shutdown), std::string("HVD_OK")) << outcome.end;
    EXPECT_EQ(outcome.weights, std::vector<float>(1000, static_cast<float>(steps)))
        << "worker " << outcome.worker;
  }
  EXPECT_EQ(done, workers);
}

TEST(Job, TrainsToTheEndWhenNothingHappens) {
  Record record;
  Job job("a:2,b:1", {{"np", "3"}},
          [&](const WorkerSeat& seat, hvd_options* options) { Trainer(seat, record, 20).run(options); });
  run_to_the_end(job);
  expect_trained(record, 3, 20);
  std::set<int32_t> ranks;
  for (const Sight& sight : record.sights.get()) {
    ranks.insert(sight.rank);
    EXPECT_EQ(sight.size, 3);
    EXPECT_EQ(static_cast<uint64_t>(sight.rank), sight.worker - 1);
  }
  EXPECT_EQ(ranks, (std::set<int32_t>{0, 1, 2}));
}

// Contract 3, 4, 5: survivors go on in the same processes from the last commit.
TEST(Job, SurvivorsGoOnWhenAWorkerIsLost) {
  for (const uint64_t victim : {1U, 2U, 3U}) {
    Record record;
    Job job("a:3", {{"np", "3"}, {"min_np", "2"}, {"restart", "false"}},
            [&](const WorkerSeat& seat, hvd_options* options) {
              Trainer trainer(seat, record, 30);
              trainer.before_step = [&](Trainer& t) {
                if (t.step != 10) return hvd_status{HVD_OK};
                // When it is complete here, every rank has made the commit before it: survivors agree.
                const hvd_status status = hvd_barrier(t.context, "everybody has committed", nullptr);
                if (t.seat.worker != victim || status != HVD_OK) return status;
                EXPECT_EQ(hvd_abort(t.context, "the test says so", nullptr), HVD_OK);
                return hvd_status{HVD_CLOSED};
              };
              trainer.run(options);
            });
    run_to_the_end(job);
    expect_trained(record, 2, 30);
    for (const Outcome& outcome : record.outcomes.get()) {
      if (outcome.worker == victim) continue;
      ASSERT_EQ(outcome.recoveries.size(), 1U);
      const hvd_recovery_info& recovery = outcome.recoveries[0];
      EXPECT_EQ(recovery.cause, static_cast<hvd_status>(HVD_PEER_LOST));
      EXPECT_EQ(recovery.from_size, 3);
      EXPECT_EQ(recovery.to_size, 2);
      EXPECT_EQ(recovery.sync_bytes, 0U) << "survivors that agree exchange nothing";  // contract 6
      EXPECT_GT(recovery.total_ns, 0);
      EXPECT_NE(std::string(recovery.reason).find("worker " + std::to_string(victim)), std::string::npos)
          << recovery.reason;
    }
    EXPECT_EQ(job.status().resets, 1);
  }
}

// Contract 1, 2: a newcomer is agreed on at one commit, and gets the state.
TEST(Job, ANewHostIsTakenIn) {
  Record record;
  ChangeOfHosts change{"a:2,b:1", 3};
  Job job("a:2", {{"np", "2"}, {"max_np", "3"}}, [&](const WorkerSeat& seat, hvd_options* options) {
    Trainer trainer(seat, record, 1 << 30);
    trainer.before_step = [&](Trainer& t) { return change.before_step(t); };
    trainer.run(options);
  });
  change.job = &job;
  run_to_the_end(job);
  const auto outcomes = record.outcomes.get();
  ASSERT_EQ(outcomes.size(), 3U);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.run, HVD_OK) << outcome.message;
    EXPECT_EQ(outcome.weights, outcomes[0].weights);
  }
  // Everybody entered the second generation at the same step, survivors first.
  std::set<int64_t> steps;
  for (const Sight& sight : record.sights.get()) {
    if (sight.generation != 2) continue;
    steps.insert(sight.step);
    EXPECT_EQ(static_cast<uint64_t>(sight.rank), sight.worker - 1);
  }
  EXPECT_EQ(steps.size(), 1U);
}

// What a reset callback sets goes to a newcomer, and operations in it meet those that the newcomer calls
// before its loop.
TEST(Job, WithResetBeforeSyncANewcomerGetsWhatCallbacksSet) {
  Record record;
  ChangeOfHosts change{"a:2,b:1", 3};
  const auto meet = [](hvd_context* context) {
    float value = 1.0F;
    hvd_tensor tensor = HVD_TENSOR_INIT;
    tensor.data = &value;
    tensor.dtype = HVD_DTYPE_FLOAT32;
    const hvd_status status = hvd_allreduce(context, "meet", &tensor, &tensor, HVD_REDUCTION_SUM, nullptr);
    return status == HVD_OK && value == 3.0F ? HVD_OK : HVD_INTERNAL;
  };
  Job job("a:2", {{"np", "2"}, {"max_np", "3"}}, [&](const WorkerSeat& seat, hvd_options* options) {
    hvd_options_set(options, "reset_before_sync", "true", nullptr);
    Trainer trainer(seat, record, 1 << 30);
    trainer.after_init = [&](Trainer& t) { return seat.worker == 3 ? meet(t.context) : hvd_status{HVD_OK}; };
    trainer.at_reset = [&](Trainer& t) {
      t.weights[0] = 7000.0F;
      return meet(t.context);
    };
    trainer.before_step = [&](Trainer& t) { return change.before_step(t); };
    trainer.run(options);
  });
  change.job = &job;
  run_to_the_end(job);
  const auto outcomes = record.outcomes.get();
  ASSERT_EQ(outcomes.size(), 3U);
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.run, HVD_OK) << outcome.message;
    EXPECT_FLOAT_EQ(outcome.weights[0], 7010.0F);
    EXPECT_EQ(outcome.weights, outcomes[0].weights);
  }
}

// H10: check_host_updates keeps live values though they were never committed.
TEST(Job, LiveValuesAreKeptWhenHostsChange) {
  Record record;
  ChangeOfHosts change{"a:2", 2};
  Job job("a:2,b:1", {{"np", "3"}, {"min_np", "2"}}, [&](const WorkerSeat& seat, hvd_options* options) {
    Trainer trainer(seat, record, 1 << 30);
    trainer.only_check = true;
    trainer.before_step = [&](Trainer& t) { return change.before_step(t); };
    trainer.run(options);
  });
  change.job = &job;
  run_to_the_end(job);
  for (const Outcome& outcome : record.outcomes.get()) {
    if (outcome.worker == 3) {
      EXPECT_EQ(hvd_status_name(outcome.run), std::string("HVD_REMOVED")) << outcome.message;
      continue;
    }
    EXPECT_EQ(outcome.run, HVD_OK) << outcome.message;
    ASSERT_EQ(outcome.recoveries.size(), 1U);
    EXPECT_EQ(outcome.recoveries[0].cause, static_cast<hvd_status>(HVD_HOSTS_UPDATED));
  }
  for (const Sight& sight : record.sights.get()) {
    if (sight.generation == 2) { EXPECT_GT(sight.step, 5) << "steps were lost"; }
  }
}

// F5: a second worker is lost while the first loss is being recovered from.
TEST(Job, ASecondLossDuringRecovery) {
  Record record;
  Job job("a:4", {{"np", "4"}, {"min_np", "2"}, {"restart", "false"}},
          [&](const WorkerSeat& seat, hvd_options* options) {
            Trainer trainer(seat, record, 30);
            trainer.before_step = [&](Trainer& t) {
              if (t.seat.worker != 4 || t.step != 10) return hvd_status{HVD_OK};
              hvd_abort(t.context, "first", nullptr);
              return hvd_status{HVD_CLOSED};
            };
            trainer.at_reset = [&](Trainer& t) {
              if (t.seat.worker != 1 || hvd_size(t.context) != 3) return hvd_status{HVD_OK};
              hvd_abort(t.context, "second", nullptr);
              return hvd_status{HVD_CLOSED};
            };
            trainer.run(options);
          });
  run_to_the_end(job);
  expect_trained(record, 2, 30);
}

// F12, contract 9: the same message everywhere, no reset, and the context stays usable.
TEST(Job, AMismatchIsNoFailure) {
  Record record;
  Watched<std::vector<std::string>> messages;
  Job job("a:3", {{"np", "3"}}, [&](const WorkerSeat& seat, hvd_options* options) {
    Trainer trainer(seat, record, 3);
    trainer.before_step = [&](Trainer& t) {
      if (t.step != 1) return hvd_status{HVD_OK};
      std::vector<float> values(static_cast<size_t>(hvd_rank(t.context) == 2 ? 4 : 3));
      hvd_tensor tensor = vector_of(values);
      hvd_error error = HVD_ERROR_INIT;
      EXPECT_EQ(hvd_allreduce(t.context, "odd", &tensor, &tensor, HVD_REDUCTION_SUM, &error), HVD_MISMATCH);
      messages.update([&](auto& all) { all.emplace_back(error.message); });
      return hvd_status{HVD_OK};
    };
    trainer.run(options);
  });
  run_to_the_end(job);
  expect_trained(record, 3, 3);
  const auto texts = messages.get();
  ASSERT_EQ(texts.size(), 3U);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
  EXPECT_NE(texts[0].find("odd"), std::string::npos) << texts[0];
  EXPECT_EQ(job.status().resets, 0);
}

// Contract 8: who leaves without being done is a loss, and the job's end says so.
TEST(Job, LeavingIsNoSuccess) {
  Record record;
  Job job("a:2", {{"np", "2"}, {"restart", "false"}, {"elastic_timeout", "0.5"}},
          [&](const WorkerSeat& seat, hvd_options* options) {
            Trainer trainer(seat, record, 10);
            trainer.before_step = [](Trainer& t) { return t.step == 3 ? HVD_CALLBACK_FAILED : HVD_OK; };
            trainer.run(options);
          });
  job.start();
  std::string sentence;
  EXPECT_EQ(job.wait(&sentence), HVD_JOB_FAILED);
  EXPECT_NE(sentence, "");
}

TEST(Job, StopReachesEveryWorker) {
  Record record;
  Job job("a:2", {{"np", "2"}},
          [&](const WorkerSeat& seat, hvd_options* options) { Trainer(seat, record, 1 << 30).run(options); });
  job.start();
  ASSERT_TRUE(record.steps.wait([](const auto& steps) { return steps.size() == 2; }));
  HVD_ASSERT_OK(hvd_driver_stop(job.driver(), "the test is over", error));
  std::string sentence;
  EXPECT_EQ(job.wait(&sentence), HVD_JOB_FAILED);
  EXPECT_NE(sentence.find("the test is over"), std::string::npos) << sentence;
  for (const Outcome& outcome : record.outcomes.get()) {
    EXPECT_EQ(hvd_status_name(outcome.run), std::string("HVD_JOB_FAILED")) << outcome.message;
  }
}

}  // namespace
}  // namespace hvd::test

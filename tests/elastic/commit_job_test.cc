// Hidden commits and divergence through the C API, with a real driver and real connections.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "elastic/job.h"

namespace hvd::test {
namespace {

constexpr int64_t kSteps = 40;

/// Commits each step's weights while the next step's allreduce runs.
struct Trainer {
  hvd_context* context = nullptr;
  hvd_state* state = nullptr;
  std::vector<float> weights = std::vector<float>(400000, 0.F);
  int64_t step = 0;
  bool hidden = true;
  std::function<hvd_status(Trainer&)> before_step;
  std::function<void(Trainer&)> before_update;  // no commit is under way

  hvd_status train() {
    hvd_status status = HVD_OK;
    bool begun = false;
    while (step < kSteps) {
      if (before_step) {
        if ((status = before_step(*this)) != HVD_OK) return status;
      }
      std::vector<float> gradient(weights.size(), 1.F);
      hvd_tensor tensor = tensor_of(gradient);
      status = hvd_allreduce(context, "gradient", &tensor, &tensor, HVD_REDUCTION_AVERAGE, nullptr);
      if (status != HVD_OK) return status;
      if (begun && (status = hvd_state_commit_end(state, nullptr)) != HVD_OK) return status;
      if (before_update) before_update(*this);
      for (size_t i = 0; i < weights.size(); ++i) weights[i] += gradient[i];
      ++step;
      status = hidden ? hvd_state_commit_begin(state, nullptr) : hvd_state_commit(state, nullptr);
      if (status != HVD_OK) return status;
      begun = hidden;
    }
    return begun ? hvd_state_commit_end(state, nullptr) : HVD_OK;
  }
  static hvd_tensor tensor_of(std::vector<float>& values) {
    hvd_tensor tensor = HVD_TENSOR_INIT;
    tensor.data = values.data();
    tensor.dtype = HVD_DTYPE_FLOAT32;
    tensor.ndim = 1;
    tensor.shape[0] = static_cast<int64_t>(values.size());
    return tensor;
  }
  int32_t rank() const {
    hvd_membership_info place{};
    place.struct_size = sizeof(place);
    EXPECT_EQ(hvd_get_membership(context, &place, nullptr), HVD_OK);
    return place.rank;
  }
  hvd_status run(hvd_options* options, hvd_error* error) {
    hvd_status status = hvd_init(options, &context, error);
    if (status != HVD_OK) return status;
    hvd_tensor tensor = tensor_of(weights);
    EXPECT_EQ(hvd_state_create(context, &state, error), HVD_OK) << error->message;
    EXPECT_EQ(hvd_state_add_tensor(state, "weights", &tensor, error), HVD_OK);
    EXPECT_EQ(hvd_state_add_value(state, "step", &step, sizeof(step), error), HVD_OK);
    status = hvd_run(
        context, state, [](void* self) { return static_cast<Trainer*>(self)->train(); }, this, error);
    hvd_shutdown(context, 60 * HVD_SECOND, nullptr);
    hvd_state_destroy(state);
    hvd_destroy(context);
    return status;
  }
};

TEST(CommitJob, HiddenCommitsSurviveALoss) {
  for (const int64_t at : {int64_t{7}, int64_t{20}}) {
    std::atomic<bool> lost{false};
    std::atomic<int> trained{0};
    Job job("localhost:3", {{"np", "3"}, {"min_np", "2"}, {"restart", "false"}},
            [&](const WorkerSeat&, hvd_options* options) {
              Trainer trainer;
              trainer.before_step = [&](Trainer& t) -> hvd_status {
                if (t.step != at || lost.exchange(true)) return HVD_OK;
                hvd_abort(t.context, "the test loses it", nullptr);  // with a commit under way
                return HVD_CLOSED;
              };
              hvd_error error = HVD_ERROR_INIT;
              if (trainer.run(options, &error) != HVD_OK) return;
              EXPECT_EQ(trainer.step, kSteps);
              EXPECT_EQ(trainer.weights,
                        std::vector<float>(trainer.weights.size(), static_cast<float>(kSteps)));
              ++trained;
            });
    job.start();
    std::string sentence;
    job.wait(&sentence);
    EXPECT_EQ(trained, 2) << sentence;
  }
}

TEST(CommitJob, DivergenceIsNamedAndCorrected) {
  for (const std::string action : {"report", "evict", "stop"}) {
    std::atomic<int> events{0}, stopped{0}, right{0};
    Job job("localhost:3", {{"np", "3"}}, [&](const WorkerSeat&, hvd_options* options) {
      EXPECT_EQ(hvd_options_set(options, "divergence_every", "2", nullptr), HVD_OK);
      EXPECT_EQ(hvd_options_set(options, "on_divergence", action.c_str(), nullptr), HVD_OK);
      Trainer trainer;
      trainer.hidden = action != "report";
      bool flipped = false;
      trainer.before_step = [&](Trainer& t) -> hvd_status {
        if (t.step == 0) {
          uint64_t listener = 0;
          EXPECT_EQ(hvd_register_listener(
                        t.context, HVD_EVENT_DIVERGED,
                        [](void* counter, const hvd_event* event) {
                          EXPECT_EQ(event->rank, 1);
                          EXPECT_NE(std::string(event->message).find("'weights'"), std::string::npos)
                              << event->message;
                          EXPECT_NE(std::string(event->message).find("rank 1 differs"), std::string::npos);
                          ++*static_cast<std::atomic<int>*>(counter);
                        },
                        &events, nullptr, &listener, nullptr),
                    HVD_OK);
        }
        return HVD_OK;
      };
      trainer.before_update = [&](Trainer& t) {
        if (t.step != 10 || t.rank() != 1 || flipped) return;
        flipped = true;
        uint32_t bits = 0;
        std::memcpy(&bits, &t.weights[1234], sizeof(bits));
        bits ^= 1U << 20U;
        std::memcpy(&t.weights[1234], &bits, sizeof(bits));
      };
      hvd_error error = HVD_ERROR_INIT;
      const hvd_status status = trainer.run(options, &error);
      if (status == HVD_MISMATCH) ++stopped;
      if (trainer.weights == std::vector<float>(trainer.weights.size(), static_cast<float>(kSteps))) ++right;
    });
    job.start();
    std::string sentence;
    job.wait(&sentence);
    if (action == "report") {
      EXPECT_EQ(right, 2);
      EXPECT_GE(events, 3);
    }
    if (action == "evict") {
      EXPECT_EQ(right, 3) << "rank 1 took the others' weights";
      EXPECT_EQ(stopped, 0);
    }
    if (action == "stop") {
      EXPECT_GE(stopped, 1) << "others may learn first that the job has ended";
      EXPECT_EQ(right, 0);
    }
  }
}

}  // namespace
}  // namespace hvd::test

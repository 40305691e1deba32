// Jobs whose workers train on devices: a real driver and the module nccl, over doubles of NCCL and of CUDA,
// so that devices are host memory and streams are threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <utility>

#include "elastic/job.h"
#include "hvd/shards.h"
#include "modules/nccl/double/nccl_double.h"

namespace hvd::test {
namespace {

constexpr size_t kCount = 1000;

struct Outcome {
  uint64_t worker = 0;
  hvd_status run = HVD_OK, shutdown = HVD_OK;
  std::string message;
  std::vector<float> weights;
  size_t recoveries = 0;
  std::vector<int64_t> begun_at;  // step at each call of the training function
  uint64_t revision = 0;
};

using Outcomes = Watched<std::vector<Outcome>>;

/// Adds 1 to each weight in every step, by kernels on its stream and an allreduce between them whose average
/// is 1.
class Trainer {
 public:
  using Hook = std::function<hvd_status(Trainer&)>;
  Trainer(const WorkerSeat& seat, Outcomes& outcomes, int64_t steps)
      : seat(seat),
        outcomes_(outcomes),
        steps_(steps),
        device_(seat.slot),
        stream(hvddouble::make_stream(device_)) {
    weights = memory();
    gradient_ = memory();
  }
  ~Trainer() {
    hvddouble::drop_stream(stream);
    hvddouble::free_device_memory(weights);
    hvddouble::free_device_memory(gradient_);
    if (moments_ != nullptr) hvddouble::free_device_memory(moments_);
  }

  void run(hvd_options* options) {
    Outcome outcome;
    outcome.worker = seat.worker;
    hvd_error error = HVD_ERROR_INIT;
    for (const auto& [key, value] : std::map<std::string, std::string>{{"backend", "gloo,nccl"},
                                                                       {"nccl_library", HVD_NCCL_DOUBLE},
                                                                       {"cuda_library", HVD_CUDA_DOUBLE}}) {
      EXPECT_EQ(hvd_options_set(options, key.c_str(), value.c_str(), &error), HVD_OK) << error.message;
    }
    outcome.run = hvd_init(options, &context, &error);
    if (outcome.run == HVD_OK) {
      outcome.run = train_all(&error);
      hvddouble::synchronize(stream);
      outcome.weights.assign(weights, weights + kCount);
      outcome.begun_at = begun_at_;
      outcome.revision = hvd_state_revision(state);
      outcome.shutdown = hvd_shutdown(context, 60 * HVD_SECOND, nullptr);
      hvd_get_recovery_count(context, &outcome.recoveries, nullptr);
      hvd_state_destroy(state);
      hvd_destroy(context);
    }
    outcome.message = error.message;
    outcomes_.update([&](auto& all) { all.push_back(outcome); });
  }

  const WorkerSeat seat;
  bool sharded = false;  // moments, too: each rank has some, with a copy on another
  Hook after_queueing;   // the step's work is queued, the commit not begun
  std::function<void(Trainer&)> at_begin;
  hvd_context* context = nullptr;
  hvd_state* state = nullptr;
  int64_t step = 0;

 private:
  float* memory() const {
    auto* const data = static_cast<float*>(hvddouble::device_memory(kCount * sizeof(float), device_));
    std::fill(data, data + kCount, 0.0F);
    return data;
  }
  hvd_tensor tensor(float* data) const {
    hvd_tensor t = HVD_TENSOR_INIT;
    t.data = data;
    t.dtype = HVD_DTYPE_FLOAT32;
    t.ndim = 1;
    t.shape[0] = kCount;
    t.memory = HVD_MEMORY_CUDA;
    t.device = device_;
    t.stream = stream;
    return t;
  }

  hvd_status train_all(hvd_error* error) {
    const hvd_tensor t = tensor(weights);
    hvd_status status = hvd_state_create(context, &state, error);
    if (status == HVD_OK) status = hvd_state_add_tensor(state, "weights", &t, error);
    if (status == HVD_OK) status = hvd_state_add_value(state, "step", &step, sizeof(step), error);
    if (status == HVD_OK && sharded) status = add_moments(error);
    if (status != HVD_OK) return status;
    return hvd_run(
        context, state, [](void* self) { return static_cast<Trainer*>(self)->train(); }, this, error);
  }

  hvd_status add_moments(hvd_error* error) {
    int64_t offset = 0;
    hvd_status status =
        hvd_shard_range(kCount, hvd_rank(context), hvd_size(context), &offset, &length_, error);
    if (status != HVD_OK) return status;
    moments_ = memory();
    hvd_tensor t = tensor(moments_);
    t.shape[0] = length_;
    return hvd_state_add_shard(state, "moments", &t, kCount, offset, 1, &Trainer::reshard, this, nullptr,
                               error);
  }
  static int32_t reshard(void* self, hvd_shard* shard) {
    auto& trainer = *static_cast<Trainer*>(self);
    if (shard->data != trainer.moments_) return 1;
    hvddouble::synchronize(trainer.stream);
    hvddouble::free_device_memory(trainer.moments_);
    shard->data = trainer.moments_ = trainer.memory();
    trainer.length_ = shard->elements;
    return 0;
  }

  hvd_status train() {
    begun_at_.push_back(step);
    if (at_begin) at_begin(*this);
    hvddouble::synchronize(stream);
    for (size_t i = 0; i < kCount; ++i) {
      if (weights[i] != static_cast<float>(step)) {
        ADD_FAILURE() << "worker " << seat.worker << " begins step " << step << " with a weight of "
                      << weights[i];
        return HVD_INTERNAL;
      }
    }
    for (int64_t i = 0; i < length_; ++i) {
      if (moments_[i] == static_cast<float>(step)) continue;
      ADD_FAILURE() << "worker " << seat.worker << " begins step " << step << " with a moment of "
                    << moments_[i];
      return HVD_INTERNAL;
    }
    while (step < steps_) {
      if (sharded) {
        hvddouble::enqueue(stream, [m = moments_, n = length_] {
          for (int64_t i = 0; i < n; ++i) m[i] += 1;
        });
      }
      hvddouble::enqueue(stream, [g = gradient_] { std::fill(g, g + kCount, 1.0F); });
      hvd_tensor t = tensor(gradient_);
      hvd_status status = hvd_allreduce(context, "gradient", &t, &t, HVD_REDUCTION_AVERAGE, nullptr);
      if (status != HVD_OK) return status;
      hvddouble::enqueue(stream, [g = gradient_, w = weights] {
        for (size_t i = 0; i < kCount; ++i) w[i] += g[i];
      });
      ++step;
      if (after_queueing) status = after_queueing(*this);
      if (status == HVD_OK) status = hvd_state_commit(state, nullptr);
      if (status != HVD_OK) return status;
    }
    return HVD_OK;
  }

  Outcomes& outcomes_;
  const int64_t steps_;
  const int device_;
  std::vector<int64_t> begun_at_;
  float* gradient_ = nullptr;
  float* moments_ = nullptr;
  int64_t length_ = 0;  // of this rank's moments

 public:
  const hvddouble::CuStream stream;
  float* weights = nullptr;
};

class DeviceJob : public ::testing::Test {
 protected:
  DeviceJob() {
    hvddouble::set_device_count(4);
    hvddouble::reset();
  }
  ~DeviceJob() override {
    EXPECT_EQ(hvddouble::alive(), "");
    for (const std::string& violation : hvddouble::violations()) ADD_FAILURE() << violation;
  }
  static void expect_success(Job& job) {
    job.start();
    std::string sentence;
    EXPECT_EQ(job.wait(&sentence), HVD_OK) << sentence;
  }
  void expect_trained(size_t workers, int64_t steps) {
    size_t done = 0;
    for (const Outcome& outcome : outcomes.get()) {
      if (outcome.run != HVD_OK) continue;
      ++done;
      EXPECT_EQ(outcome.shutdown, HVD_OK);
      EXPECT_EQ(outcome.weights, std::vector<float>(kCount, static_cast<float>(steps)))
          << "worker " << outcome.worker;
      EXPECT_GE(outcome.revision, static_cast<uint64_t>(steps));
    }
    EXPECT_EQ(done, workers);
  }
  Outcomes outcomes;
};

TEST_F(DeviceJob, TrainsToTheEnd) {
  {
    Job job("a:3", {{"np", "3"}},
            [&](const WorkerSeat& seat, hvd_options* options) { Trainer(seat, outcomes, 20).run(options); });
    expect_success(job);
  }
  expect_trained(3, 20);
}

TEST_F(DeviceJob, ShardsOnDevicesOutliveOneOfThem) {
  constexpr uint64_t kVictim = 1;
  {
    Job job("a:3", {{"np", "3"}, {"min_np", "2"}, {"restart", "false"}},
            [&](const WorkerSeat& seat, hvd_options* options) {
              Trainer trainer(seat, outcomes, 12);
              trainer.sharded = true;
              trainer.after_queueing = [](Trainer& t) -> hvd_status {
                if (t.seat.worker != kVictim || t.step != 6) return HVD_OK;
                EXPECT_EQ(hvd_abort(t.context, "the test says so", nullptr), HVD_OK);
                return HVD_CLOSED;
              };
              trainer.run(options);
            });
    expect_success(job);
  }
  for (const Outcome& outcome : outcomes.get()) {
    if (outcome.worker == kVictim) continue;
    EXPECT_EQ(outcome.run, HVD_OK) << outcome.message;
    EXPECT_EQ(outcome.begun_at, (std::vector<int64_t>{0, 5}));
  }
  expect_trained(2, 12);
}

// The one who is lost has queued its part of a collective, which its device never comes to: the others'
// devices wait for it, with the rest of the step and the copies of a commit behind it, when the generation is
// given up. What those copies bring then must not become a commit (contract 4).
TEST_F(DeviceJob, ACommitBehindACollectiveThatIsCutOffIsNone) {
  constexpr uint64_t kVictim = 2;
  std::promise<void> over;
  std::once_flag once;
  const std::shared_future<void> until = over.get_future().share();
  Watched<int> begun{0};  // commits that are under way
  {
    Job job("a:3", {{"np", "3"}, {"min_np", "2"}, {"restart", "false"}},
            [&](const WorkerSeat& seat, hvd_options* options) {
              Trainer trainer(seat, outcomes, 20);
              bool first = true;
              trainer.at_begin = [&](Trainer& t) {
                if (t.step > 0) std::call_once(once, [&] { over.set_value(); });
              };
              trainer.after_queueing = [&](Trainer& t) -> hvd_status {
                if (t.seat.worker == kVictim && t.step == 9) {
                  // Behind the commit of step 9, before the collective of step 10.
                  const hvd_status status = hvd_state_commit(t.state, nullptr);
                  hvddouble::enqueue(t.stream, [until] { until.wait(); });
                  return status;
                }
                if (t.step == 9) return hvd_state_commit(t.state, nullptr);
                if (t.step != 10 || !std::exchange(first, false)) return HVD_OK;
                if (t.seat.worker != kVictim) {
                  EXPECT_EQ(hvd_state_save(t.state, nullptr), HVD_OK);
                  begun.update([](int& n) { ++n; });
                  return HVD_OK;
                }
                EXPECT_TRUE(begun.wait([](int n) { return n == 2; }));
                EXPECT_EQ(hvd_abort(t.context, "the test says so", nullptr), HVD_OK);
                return HVD_CLOSED;
              };
              trainer.run(options);
            });
    expect_success(job);
    std::call_once(once, [&] { over.set_value(); });
  }
  for (const Outcome& outcome : outcomes.get()) {
    if (outcome.worker == kVictim) continue;
    EXPECT_EQ(outcome.run, HVD_OK) << outcome.message;
    EXPECT_EQ(outcome.recoveries, 1U);
    EXPECT_EQ(outcome.begun_at, (std::vector<int64_t>{0, 9}));
  }
  expect_trained(2, 20);
}

}  // namespace
}  // namespace hvd::test

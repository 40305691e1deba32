// Adam whose moments are sharded over the ranks (ZeRO, stage 1): each rank holds one range of m and v,
// updates that range of the weights, and gathers the others' ranges. m and v are shards of the state with one
// copy on a peer, so that any one worker may be killed at any time:
//   hvdrun -np 4 --min-np 2 -H localhost:4 --set restart=false sharded_adam 400 150
// trains Fashion-MNIST for 400 steps, and rank 1 kills itself before the 150th. What the workers print at the
// end is the same with and without that, accuracy and weights bit for bit: a batch is eight micro-batches,
// whose gradients are summed in their order whoever computed them.
#include <hvd/hvd.h>
#include <hvd/shards.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "idx_file.h"
#include "mlp.h"

namespace {

constexpr int64_t kHidden = 64, kClasses = 10, kMicroBatches = 8, kSamples = 16;

/// One sharded vector: this rank's range of it.
struct Moments {
  std::vector<float> values;
  int64_t offset = 0;

  static int32_t reshard(void* self, hvd_shard* shard) {  // a new range: the sync fills it
    auto& moments = *static_cast<Moments*>(self);
    moments.values.assign(static_cast<size_t>(shard->elements), 0);
    moments.offset = shard->offset;
    shard->data = moments.values.data();
    return 0;
  }
};

hvd_tensor floats(float* data, int64_t count) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = data;
  tensor.dtype = HVD_DTYPE_FLOAT32;
  tensor.ndim = 1;
  tensor.shape[0] = count;
  return tensor;
}

struct Trainer {
  hvd_context* context = nullptr;
  hvd_state* state = nullptr;
  hvd_error error = HVD_ERROR_INIT;
  Images images, test;
  Mlp model{0, kHidden, kClasses};
  std::vector<float> weights;
  Moments m, v;
  int64_t step = 0, steps = 400, dies_before = -1;
  float loss = 0;

  int64_t parameters() const { return model.parameter_count(); }

  /// Pixels from -0.5 to 0.5, one sample a column.
  static void put(const Images& from, int64_t sample, int64_t column, Mlp::Matrix* x,
                  std::vector<uint8_t>* labels) {
    const uint8_t* pixels = from.data.data() + sample * from.pixels;
    for (int64_t k = 0; k < from.pixels; ++k) (*x)(k, column) = static_cast<float>(pixels[k]) / 255.0f - 0.5f;
    labels->push_back(from.labels[static_cast<size_t>(sample)]);
  }

  /// Samples at random, the same whoever asks.
  float micro_batch(int64_t number, float* gradient) const {
    std::mt19937 random(static_cast<uint32_t>(step * kMicroBatches + number));
    Mlp::Matrix x(images.pixels, kSamples);
    std::vector<uint8_t> labels;
    for (int64_t i = 0; i < kSamples; ++i) put(images, random() % images.count, i, &x, &labels);
    return model.gradient(weights.data(), x, labels, gradient);
  }

  double accuracy() const {
    Mlp::Matrix x(test.pixels, test.count);
    std::vector<uint8_t> labels;
    for (int64_t i = 0; i < test.count; ++i) put(test, i, i, &x, &labels);
    return static_cast<double>(model.count_correct(weights.data(), x, labels)) /
           static_cast<double>(test.count);
  }

  hvd_status batch_gradient(std::vector<float>* sum) {
    const int32_t rank = hvd_rank(context), size = hvd_size(context);
    int64_t first = 0, count = 0;
    hvd_shard_range(kMicroBatches, rank, size, &first, &count, &error);
    const int64_t row = parameters() + 1;  // a gradient and its loss
    std::vector<float> mine(static_cast<size_t>(count * row + 1)),
        all(static_cast<size_t>(kMicroBatches * row));
    std::vector<float> one(static_cast<size_t>(row));  // Eigen's sums depend on where the target lies
    for (int64_t i = 0; i < count; ++i) {
      one.back() = micro_batch(first + i, one.data());
      std::copy(one.begin(), one.end(), mine.begin() + i * row);
    }
    hvd_tensor input = floats(mine.data(), count * row), output = floats(all.data(), kMicroBatches * row);
    if (hvd_status s = hvd_allgather(context, "gradients", &input, &output, &error); s != HVD_OK) return s;
    sum->assign(static_cast<size_t>(row), 0);
    for (int64_t i = 0; i < kMicroBatches * row; ++i)
      (*sum)[static_cast<size_t>(i % row)] += all[static_cast<size_t>(i)];
    for (float& value : *sum) value /= kMicroBatches * kSamples;
    loss = sum->back();
    return HVD_OK;
  }

  /// Kingma and Ba, "Adam" (2015), of this rank's range; then everybody's ranges are put together.
  hvd_status update(const std::vector<float>& gradient) {
    const float t = static_cast<float>(step + 1), b1 = 0.9f, b2 = 0.999f;
    const float c1 = 1 - std::pow(b1, t), c2 = 1 - std::pow(b2, t);
    for (size_t i = 0; i < m.values.size(); ++i) {
      const size_t at = static_cast<size_t>(m.offset) + i;
      m.values[i] = b1 * m.values[i] + (1 - b1) * gradient[at];
      v.values[i] = b2 * v.values[i] + (1 - b2) * gradient[at] * gradient[at];
      weights[at] -= 0.001f * (m.values[i] / c1) / (std::sqrt(v.values[i] / c2) + 1e-8f);
    }
    std::vector<float> mine(weights.begin() + m.offset,
                            weights.begin() + m.offset + static_cast<int64_t>(m.values.size()));
    hvd_tensor input = floats(mine.data(), static_cast<int64_t>(mine.size()));
    hvd_tensor output = floats(weights.data(), parameters());
    return hvd_allgather(context, "weights", &input, &output, &error);
  }

  hvd_status train() {
    std::vector<float> gradient;
    while (step < steps) {
      if (step == dies_before && hvd_generation(context) == 1 && hvd_rank(context) == 1) raise(SIGKILL);
      hvd_status status = batch_gradient(&gradient);
      if (status == HVD_OK) status = update(gradient);
      if (status != HVD_OK) return status;
      if (step == 0 && hvd_rank(context) == 0) std::printf("loss at first: %.4f\n", loss);
      ++step;
      if ((status = hvd_state_commit(state, &error)) != HVD_OK) return status;
    }
    return HVD_OK;
  }

  hvd_status add(const char* key, Moments* moments) {
    int64_t count = 0;
    hvd_shard_range(parameters(), hvd_rank(context), hvd_size(context), &moments->offset, &count, &error);
    moments->values.assign(static_cast<size_t>(count), 0);
    const hvd_tensor tensor = floats(moments->values.data(), count);
    return hvd_state_add_shard(state, key, &tensor, parameters(), moments->offset, 1, &Moments::reshard,
                               moments, nullptr, &error);
  }

  hvd_status run() {
    model = Mlp(images.pixels, kHidden, kClasses);
    weights.resize(static_cast<size_t>(model.parameter_count()));
    model.initialize(weights.data(), 1);
    const hvd_tensor replicated = floats(weights.data(), parameters());
    hvd_status s = hvd_init(nullptr, &context, &error);
    if (s == HVD_OK) s = hvd_state_create(context, &state, &error);
    if (s == HVD_OK) s = hvd_state_add_tensor(state, "weights", &replicated, &error);
    if (s == HVD_OK) s = hvd_state_add_value(state, "step", &step, sizeof step, &error);
    if (s == HVD_OK) s = add("adam.m", &m);
    if (s == HVD_OK) s = add("adam.v", &v);
    if (s == HVD_OK) {
      s = hvd_run(
          context, state, [](void* self) { return static_cast<Trainer*>(self)->train(); }, this, &error);
    }
    if (s == HVD_OK) {
      uint64_t sum = 0xcbf29ce484222325;  // FNV-1a
      for (const float weight : weights) {
        uint32_t bits = 0;
        std::memcpy(&bits, &weight, sizeof bits);
        sum = (sum ^ bits) * 0x100000001b3;
      }
      std::printf("rank %d of %d: loss %.4f, test accuracy %.4f, weights %016llx\n", hvd_rank(context),
                  hvd_size(context), loss, accuracy(), static_cast<unsigned long long>(sum));
      s = hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, &error);
    }
    if (s != HVD_OK) std::fprintf(stderr, "%s: %s\n", hvd_status_name(s), error.message);
    hvd_state_destroy(state);
    hvd_destroy(context);
    return s;
  }
};

}  // namespace

int main(int argc, char** argv) {
  Trainer trainer;
  if (argc > 1) trainer.steps = std::atoll(argv[1]);
  if (argc > 2) trainer.dies_before = std::atoll(argv[2]);
  const char* directory = std::getenv("HVD_FASHION_MNIST_DIR");
  if (directory == nullptr) directory = "/usr/share/datasets/fashion-mnist";
  try {
    trainer.images = read_images(directory, "train");
    trainer.test = read_images(directory, "t10k");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return trainer.run() == HVD_OK ? 0 : 1;
}

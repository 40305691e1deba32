// Trains a small network on Fashion-MNIST with whoever is there: workers may die, leave and join while it
// runs. It uses libhvd as a C program would, through hvd.h alone; C++ is for Eigen.
//
//   hvdrun -np 3 --min-np 2 --max-np 4 --host-discovery-script ./hosts.sh fashion_mnist
//
// What elastic training asks of a program shows in three places: a sampler deals the samples out, for as many
// workers as there are in a step, gradients are sums over samples that are divided by how many there were,
// and whatever must survive is registered in a state.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "hvd/hvd.h"
#include "hvd/sampler.h"
#include "idx_file.h"
#include "mlp.h"

namespace {

struct Settings {
  std::string data = "/usr/share/datasets/fashion-mnist";
  int64_t epochs = 8, batch = 64, hidden = 128, commit_every = 10, report_every = 20, seed = 1;
  float rate = 0.02f, momentum = 0.9f;
  double target = 0.84;
};

struct Job {
  Settings settings;
  Images train, test;
  Mlp model{0, 0, 0};
  hvd_context* context = nullptr;
  hvd_state* state = nullptr;

  // In the state.
  std::vector<float> parameters, velocity;
  int64_t step = 0;
  hvd_sampler* sampler = nullptr;

  int32_t rank = -1, size = 0;  // of this generation

  std::vector<uint64_t> chosen;  // samples of this worker in this step
  Mlp::Matrix batch;
  std::vector<uint8_t> labels;
  size_t reported = 0;  // recoveries
  double accuracy = 0;
};

hvd_tensor tensor(void* data, hvd_dtype dtype, size_t count) {
  hvd_tensor t = HVD_TENSOR_INIT;
  t.data = data;
  t.dtype = dtype;
  t.ndim = 1;
  t.shape[0] = static_cast<int64_t>(count);
  return t;
}

void log_line(void*, hvd_log_level, const char* message) { fprintf(stderr, "hvd: %s\n", message); }

// Pixels of the chosen samples, from -0.5 to 0.5, one sample a column.
void gather(const Images& images, const std::vector<uint64_t>& chosen, Mlp::Matrix* x,
            std::vector<uint8_t>* labels) {
  const auto count = static_cast<int64_t>(chosen.size());
  x->resize(images.pixels, count);
  labels->resize(chosen.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto sample = static_cast<int64_t>(chosen[static_cast<size_t>(i)]);
    const uint8_t* pixels = images.data.data() + sample * images.pixels;
    for (int64_t k = 0; k < images.pixels; ++k) (*x)(k, i) = static_cast<float>(pixels[k]) / 255.0f - 0.5f;
    (*labels)[static_cast<size_t>(i)] = images.labels[static_cast<size_t>(sample)];
  }
}

double ms(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }

void report_recoveries(Job* job) {
  size_t count = 0;
  if (hvd_get_recovery_count(job->context, &count, nullptr) != HVD_OK) return;
  for (; job->reported < count; ++job->reported) {
    hvd_recovery_info r = {};
    r.struct_size = sizeof r;
    if (job->rank != 0 || hvd_get_recovery(job->context, job->reported, &r, nullptr) != HVD_OK) continue;
    const char* cause = r.reason[0] != 0 ? r.reason : "unknown cause";
    const char* verb = r.cause == HVD_PEER_LOST  ? "go on"
                       : r.to_size > r.from_size ? "from now on"
                                                 : "remain";
    printf("recovery %zu: %s: %d workers %s; detection %.1f ms, abort %.1f, restore %.1f, forming %.1f, ",
           job->reported + 1, cause, r.to_size, verb, ms(r.detection_ns), ms(r.abort_ns), ms(r.restore_ns),
           ms(r.forming_ns));
    printf("connecting %.1f, sync %.1f, total %.1f ms\n", ms(r.connecting_ns), ms(r.sync_ns), ms(r.total_ns));
  }
}

// One step of all workers on their parts of the batch.
hvd_status step(Job* job, const hvd_sampler_batch& batch, std::vector<float>* sums, float* ret_loss) {
  const size_t parameters = job->parameters.size();
  gather(job->train, job->chosen, &job->batch, &job->labels);
  (*sums)[parameters] = job->model.gradient(job->parameters.data(), job->batch, job->labels, sums->data());

  hvd_tensor t = tensor(sums->data(), HVD_DTYPE_FLOAT32, sums->size());
  hvd_error error = HVD_ERROR_INIT;
  const hvd_status status = hvd_allreduce(job->context, "gradient", &t, &t, HVD_REDUCTION_SUM, &error);
  if (status != HVD_OK) return status;

  const float scale = 1.0f / static_cast<float>(batch.total);
  for (size_t i = 0; i < parameters; ++i) {
    job->velocity[i] = job->settings.momentum * job->velocity[i] + scale * (*sums)[i];
    job->parameters[i] -= job->settings.rate * job->velocity[i];
  }
  *ret_loss = (*sums)[parameters] * scale;
  job->step += 1;
  return hvd_sampler_record(job->sampler, &batch, nullptr);
}

// Each worker classifies its part of the test set; all get the result.
hvd_status evaluate(Job* job) {
  const int64_t first = job->test.count * job->rank / job->size;
  const int64_t last = job->test.count * (job->rank + 1) / job->size;
  std::vector<uint64_t> chosen(static_cast<size_t>(last - first));
  std::iota(chosen.begin(), chosen.end(), static_cast<uint64_t>(first));
  Mlp::Matrix x;
  std::vector<uint8_t> labels;
  gather(job->test, chosen, &x, &labels);
  int64_t correct = job->model.count_correct(job->parameters.data(), x, labels);
  hvd_tensor t = tensor(&correct, HVD_DTYPE_INT64, 1);
  const hvd_status status = hvd_allreduce(job->context, "correct", &t, &t, HVD_REDUCTION_SUM, nullptr);
  if (status == HVD_OK) job->accuracy = static_cast<double>(correct) / static_cast<double>(job->test.count);
  return status;
}

// Do all workers hold the same model, bit for bit? Compares the FNV-1a hash of the parameters.
hvd_status compare_models(Job* job) {
  uint64_t hash = 14695981039346656037u;
  for (float value : job->parameters) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * 1099511628211u;
  }
  uint64_t lowest = hash, highest = hash;
  hvd_tensor low = tensor(&lowest, HVD_DTYPE_UINT64, 1), high = tensor(&highest, HVD_DTYPE_UINT64, 1);
  hvd_status status = hvd_allreduce(job->context, "lowest hash", &low, &low, HVD_REDUCTION_MIN, nullptr);
  if (status == HVD_OK)
    status = hvd_allreduce(job->context, "highest hash", &high, &high, HVD_REDUCTION_MAX, nullptr);
  if (status != HVD_OK) return status;
  if (lowest == highest) {
    if (job->rank == 0) {
      printf("all %d workers hold the same model (%016llx)\n", job->size,
             static_cast<unsigned long long>(hash));
    }
    return HVD_OK;
  }
  fprintf(stderr, "rank %d holds a model of its own (%016llx)\n", job->rank,
          static_cast<unsigned long long>(hash));
  return HVD_CALLBACK_FAILED;
}

// The training function of hvd_run: begins wherever the state is, with whoever is there.
hvd_status train(void* userdata) {
  Job* job = static_cast<Job*>(userdata);
  job->rank = hvd_rank(job->context);
  job->size = hvd_size(job->context);
  report_recoveries(job);
  std::vector<float> sums(job->parameters.size() + 1);  // gradient and loss
  hvd_sampler_batch batch = {};
  batch.struct_size = sizeof batch;
  while (true) {
    job->chosen.resize(static_cast<size_t>(job->settings.batch));
    hvd_status status =
        hvd_sampler_next(job->sampler, nullptr, job->chosen.data(), job->chosen.size(), &batch, nullptr);
    if (status != HVD_OK) return status;
    job->chosen.resize(batch.count);
    if (batch.total == 0) {  // the epoch is over
      if (batch.epoch + 1 >= static_cast<uint64_t>(job->settings.epochs)) break;
      status = hvd_sampler_set_epoch(job->sampler, batch.epoch + 1, nullptr);
      if (status != HVD_OK) return status;
      continue;
    }
    float loss = 0;
    status = step(job, batch, &sums, &loss);
    if (status != HVD_OK) return status;
    if (job->rank == 0 && job->step % job->settings.report_every == 0) {
      printf("epoch %llu step %lld loss %.3f workers %d\n", static_cast<unsigned long long>(batch.epoch + 1),
             static_cast<long long>(job->step), static_cast<double>(loss), job->size);
    }
    if (job->step % job->settings.commit_every == 0) {
      status = hvd_state_commit(job->state, nullptr);
      if (status != HVD_OK) return status;
    }
  }
  hvd_status status = evaluate(job);
  if (status == HVD_OK) status = compare_models(job);
  if (status != HVD_OK) return status;
  if (job->rank == 0) printf("test accuracy %.4f\n", job->accuracy);
  if (job->accuracy >= job->settings.target) return HVD_OK;
  if (job->rank == 0) fprintf(stderr, "the accuracy is below the target of %.4f\n", job->settings.target);
  return HVD_CALLBACK_FAILED;  // ends hvd_run, and the job: no worker says that it is done
}

bool parse(int argc, char** argv, Settings* settings) {
  if (const char* directory = getenv("HVD_FASHION_MNIST_DIR")) settings->data = directory;
  struct Number {
    const char* name;
    int64_t* value;
  };
  const Number numbers[] = {{"--epochs", &settings->epochs},
                            {"--batch", &settings->batch},
                            {"--hidden", &settings->hidden},
                            {"--commit-every", &settings->commit_every},
                            {"--report-every", &settings->report_every},
                            {"--seed", &settings->seed}};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) return false;
    const char* text = argv[i + 1];
    bool known = true;
    if (name == "--data") {
      settings->data = text;
    } else if (name == "--rate") {
      settings->rate = static_cast<float>(atof(text));
    } else if (name == "--target") {
      settings->target = atof(text);
    } else {
      known = false;
    }
    for (const Number& number : numbers) {
      if (name != number.name) continue;
      *number.value = std::max(1LL, atoll(text));
      known = true;
    }
    if (!known) return false;
  }
  return true;
}

hvd_status open_job(Job* job, hvd_error* error) {
  hvd_options* options = nullptr;
  hvd_status status = hvd_options_create(&options, error);
  if (status == HVD_OK)
    status = hvd_options_set_log(options, HVD_LOG_DEFAULT, log_line, nullptr, nullptr, error);
  if (status == HVD_OK) status = hvd_init(options, &job->context, error);
  hvd_options_destroy(options);
  if (status != HVD_OK) return status;

  hvd_membership_info place = {};
  place.struct_size = sizeof place;
  status = hvd_get_membership(job->context, &place, error);
  printf("worker %llu pid %d joins as rank %d of %d\n", static_cast<unsigned long long>(place.worker),
         getpid(), place.rank, place.size);

  hvd_tensor parameters = tensor(job->parameters.data(), HVD_DTYPE_FLOAT32, job->parameters.size());
  hvd_tensor velocity = tensor(job->velocity.data(), HVD_DTYPE_FLOAT32, job->velocity.size());
  if (status == HVD_OK) status = hvd_state_create(job->context, &job->state, error);
  if (status == HVD_OK) status = hvd_state_add_tensor(job->state, "parameters", &parameters, error);
  if (status == HVD_OK) status = hvd_state_add_tensor(job->state, "velocity", &velocity, error);
  if (status == HVD_OK) status = hvd_state_add_value(job->state, "step", &job->step, sizeof job->step, error);
  hvd_sampler_options samples = {};
  samples.struct_size = sizeof samples;
  samples.samples = static_cast<uint64_t>(job->train.count);
  samples.batch_size = static_cast<uint64_t>(job->settings.batch);
  samples.seed = static_cast<uint64_t>(job->settings.seed);
  if (status == HVD_OK) status = hvd_sampler_create(job->context, &samples, &job->sampler, error);
  if (status == HVD_OK) status = hvd_state_add_sampler(job->state, "sampler", job->sampler, error);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  Job job;
  if (!parse(argc, argv, &job.settings)) {
    fprintf(stderr,
            "usage: %s [--data DIR] [--epochs N] [--batch N] [--hidden N] [--commit-every STEPS] "
            "[--report-every STEPS] [--seed N] [--rate R] [--target ACCURACY]\n",
            argv[0]);
    return 2;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    job.train = read_images(job.settings.data, "train");
    job.test = read_images(job.settings.data, "t10k");
  } catch (const std::exception& e) {
    fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  job.model = Mlp(job.train.pixels, job.settings.hidden, 10);
  job.parameters.resize(static_cast<size_t>(job.model.parameter_count()));
  job.velocity.resize(job.parameters.size());
  job.model.initialize(job.parameters.data(), static_cast<uint64_t>(job.settings.seed));

  hvd_error error = HVD_ERROR_INIT;
  hvd_status status = open_job(&job, &error);
  if (status == HVD_OK) status = hvd_run(job.context, job.state, train, &job, &error);
  // Says that this worker is done; after a failed run it only takes leave.
  if (job.context != nullptr && status != HVD_REMOVED) {
    const hvd_status end =
        hvd_shutdown(job.context, HVD_DEFAULT_TIMEOUT, status == HVD_OK ? &error : nullptr);
    if (status == HVD_OK) status = end;
  }
  if (status == HVD_REMOVED) {
    printf("worker pid %d leaves: %s\n", getpid(), error.message);
  } else if (status != HVD_OK) {
    fprintf(stderr, "%s: %s\n", hvd_status_name(status), error.message);
  }
  hvd_sampler_destroy(job.sampler);
  hvd_state_destroy(job.state);
  hvd_destroy(job.context);
  return status == HVD_OK || status == HVD_REMOVED ? 0 : 1;
}

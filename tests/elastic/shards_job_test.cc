// Recoveries that fail with shards in the state: hvd_run returns with the last commit in the program's
// memory.
#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "elastic/job.h"
#include "hvd/shards.h"

namespace hvd::test {
namespace {

constexpr int64_t kElements = 1000003, kLost = 4, kSteps = 8;

double value_of(int64_t element, int64_t step) {
  return static_cast<double>(element) * 0.25 + static_cast<double>(step) * 1e7;
}

/// Commits at each step; in between its shard is half written.
struct Trainer {
  hvd_context* context = nullptr;
  hvd_state* state = nullptr;
  std::vector<double> shard;
  int64_t offset = 0, step = 0;
  int resharded = 0;
  int32_t first_rank = -1;
  bool breaks_off = false;  // it is lost when the others' objects reach it
  std::function<bool(Trainer&)> is_lost;
  std::function<hvd_status(Trainer&)> body = [](Trainer& trainer) { return trainer.train(); };

  void take_range(int64_t from, int64_t count) {
    offset = from;
    shard.assign(static_cast<size_t>(count), -1);
  }
  void write(int64_t of) {
    for (size_t i = 0; i < shard.size(); ++i) shard[i] = value_of(offset + static_cast<int64_t>(i), of);
  }
  int64_t wrong() const {
    int64_t count = 0;
    for (size_t i = 0; i < shard.size(); ++i)
      count += shard[i] != value_of(offset + static_cast<int64_t>(i), step) ? 1 : 0;
    return count;
  }
  hvd_status lose() const {
    hvd_abort(context, "the test loses it", nullptr);
    return HVD_CLOSED;
  }

  hvd_status train(int64_t until = kSteps) {
    while (step < until) {
      std::fill_n(shard.begin(), shard.size() / 2, -1.0);
      if (is_lost(*this)) return lose();
      float gradient = 1;
      hvd_tensor tensor = HVD_TENSOR_INIT;
      tensor.data = &gradient;
      tensor.dtype = HVD_DTYPE_FLOAT32;
      hvd_status status =
          hvd_allreduce(context, "gradient", &tensor, &tensor, HVD_REDUCTION_AVERAGE, nullptr);
      if (status != HVD_OK) return status;
      write(++step);
      if ((status = hvd_state_commit(state, nullptr)) != HVD_OK) return status;
      // The next worker to be lost is lost when all have that commit.
      if ((status = hvd_barrier(context, "committed", nullptr)) != HVD_OK) return status;
    }
    return HVD_OK;
  }
  static int32_t reshard(void* self, hvd_shard* shard) {
    auto& trainer = *static_cast<Trainer*>(self);
    trainer.take_range(shard->offset, shard->elements);
    shard->data = trainer.shard.data();
    ++trainer.resharded;
    return 0;
  }
  static int32_t load(void* self, const void*, size_t) {
    const auto& trainer = *static_cast<Trainer*>(self);
    if (!trainer.breaks_off) return 0;
    trainer.lose();
    return 1;
  }
  static int32_t save(void* self, hvd_write_fn write, void* sink) {
    write(sink, &static_cast<Trainer*>(self)->step, sizeof(int64_t));
    return 0;
  }

  hvd_status run(hvd_options* options, hvd_error* error) {
    hvd_status status = hvd_init(options, &context, error);
    if (status != HVD_OK) return status;
    hvd_membership_info place{};
    place.struct_size = sizeof(place);
    EXPECT_EQ(hvd_get_membership(context, &place, nullptr), HVD_OK);
    first_rank = place.rank;
    int64_t from = 0, count = 0;
    EXPECT_EQ(hvd_shard_range(kElements, place.rank, place.size, &from, &count, error), HVD_OK);
    take_range(from, count);
    write(0);
    hvd_tensor tensor = HVD_TENSOR_INIT;
    tensor.data = shard.data();
    tensor.dtype = HVD_DTYPE_FLOAT64;
    tensor.ndim = 1;
    tensor.shape[0] = count;
    EXPECT_EQ(hvd_state_create(context, &state, error), HVD_OK) << error->message;
    EXPECT_EQ(hvd_state_add_shard(state, "m", &tensor, kElements, from, 1, reshard, this, nullptr, error),
              HVD_OK)
        << error->message;
    EXPECT_EQ(hvd_state_add_value(state, "step", &step, sizeof(step), error), HVD_OK);
    EXPECT_EQ(hvd_state_add_object(state, "object", save, load, this, nullptr, error), HVD_OK);
    return hvd_run(
        context, state,
        [](void* self) { return static_cast<Trainer*>(self)->body(*static_cast<Trainer*>(self)); }, this,
        error);
  }
  ~Trainer() {
    hvd_shutdown(context, 60 * HVD_SECOND, nullptr);
    hvd_state_destroy(state);
    hvd_destroy(context);
  }
};

/// A job of three, of which rank 2 is lost at kLost; and so is who comes in its place, `newcomers` times.
struct ShardsJob : ::testing::Test {
  std::atomic<int> lost{0}, newcomers_lost{0}, done{0}, failed{0};

  void run(const std::map<std::string, std::string>& options, int newcomers) {
    std::map<std::string, std::string> all = {{"np", "3"}, {"min_np", "3"}, {"feed_timeout", "0"}};
    all.insert(options.begin(), options.end());
    Job job("localhost:3", all, [&](const WorkerSeat&, hvd_options* given) {
      Trainer trainer;
      trainer.is_lost = [&](const Trainer& t) {
        return t.step == kLost && t.first_rank == 2 && lost.exchange(1) == 0;
      };
      trainer.breaks_off = lost > 0 && newcomers_lost++ < newcomers;
      hvd_error error = HVD_ERROR_INIT;
      const hvd_status status = trainer.run(given, &error);
      if (status == HVD_OK) {
        EXPECT_EQ(trainer.step, kSteps);
        EXPECT_EQ(trainer.wrong(), 0);
        ++done;
      } else if (trainer.first_rank == 0 || trainer.first_rank == 1) {
        EXPECT_EQ(trainer.step, kLost);
        EXPECT_EQ(trainer.resharded, 0);
        EXPECT_EQ(hvd_state_revision(trainer.state), static_cast<uint64_t>(kLost));
        EXPECT_EQ(trainer.wrong(), 0) << "of " << trainer.shard.size() << " elements from " << trainer.offset;
        ++failed;
      }
    });
    job.start();
    std::string sentence;
    job.wait(&sentence);
  }
};

TEST_F(ShardsJob, NoOtherGenerationIsFormed) {
  run({{"restart", "false"}, {"elastic_timeout", "2"}}, 0);
  EXPECT_EQ(failed, 2);
}

/// The newcomer has taken what all have alike, and is lost before the shards.
TEST_F(ShardsJob, TheSyncIsCutOff) {
  run({{"reset_limit", "1"}}, 1);
  EXPECT_EQ(failed, 2);
}

TEST_F(ShardsJob, TheSyncIsCutOffAndMadeAgain) {
  run({}, 1);
  EXPECT_EQ(done, 3);
  EXPECT_EQ(newcomers_lost, 2);
}

/// Others leave at a check while one has joined: nothing can be committed without its shards, so that all go
/// back to the last commit, and the newcomer takes that.
TEST(ShardsJobs, HostsChangeWhileOneHasJoined) {
  std::atomic<bool> told{false};
  std::atomic<int> done{0}, gone_back{0};
  Job* the_job = nullptr;
  Job job("localhost:3", {{"np", "3"}, {"max_np", "4"}, {"feed_timeout", "0"}},
          [&](const WorkerSeat&, hvd_options* given) {
            Trainer trainer;
            trainer.is_lost = [](const Trainer&) { return false; };
            trainer.body = [&](Trainer& t) -> hvd_status {
              hvd_membership_info place{};
              place.struct_size = sizeof(place);
              EXPECT_EQ(hvd_get_membership(t.context, &place, nullptr), HVD_OK);
              if (place.size == 4) {
                EXPECT_EQ(t.step, 2);
                EXPECT_EQ(t.wrong(), 0);
                ++gone_back;
                return t.train();
              }
              hvd_status status = t.train(2);
              if (status != HVD_OK) return status;
              if (place.rank == 2) {
                int32_t last = -1;
                return hvd_join(t.context, &last, nullptr);
              }
              while (status == HVD_OK) {
                t.write(++t.step);
                if (place.rank == 0 && !told.exchange(true)) the_job->set_hosts("localhost:4");
                float gradient = 1;
                hvd_tensor tensor = HVD_TENSOR_INIT;
                tensor.data = &gradient;
                tensor.dtype = HVD_DTYPE_FLOAT32;
                status = hvd_allreduce(t.context, "more", &tensor, &tensor, HVD_REDUCTION_SUM, nullptr);
                if (status == HVD_OK) status = hvd_state_check_host_updates(t.state, nullptr);
              }
              return status;
            };
            hvd_error error = HVD_ERROR_INIT;
            EXPECT_EQ(trainer.run(given, &error), HVD_OK) << error.message;
            EXPECT_EQ(trainer.step, kSteps);
            EXPECT_EQ(trainer.wrong(), 0);
            ++done;
          });
  the_job = &job;
  job.start();
  std::string sentence;
  EXPECT_EQ(job.wait(&sentence), HVD_OK) << sentence;
  EXPECT_EQ(done, 4);
  EXPECT_EQ(gone_back, 4);
}

/// Writes into every copy of a shard that this process has, but for the live one: `words` are elements of it
/// that lie side by side. How many there were.
int rot(const std::vector<double>& words, const std::vector<double>& live) {
  const size_t size = words.size() * sizeof(double);
  std::vector<uint8_t> wanted(size);
  for (size_t i = 0; i < size; ++i)  // so that this is none of them
    wanted[i] = static_cast<uint8_t>(~reinterpret_cast<const uint8_t*>(words.data())[i]);
  std::ifstream maps("/proc/self/maps");
  int found = 0;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char mode[5] = "";
    if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, mode) != 3 || mode[1] != 'w') continue;
    if (end - begin > uintptr_t{1} << 30) continue;  // address space that a sanitizer has reserved
    std::vector<uint8_t> bytes(end - begin);
    iovec to{bytes.data(), bytes.size()}, from{reinterpret_cast<void*>(begin), bytes.size()};
    const ssize_t got = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
    for (ssize_t at = 0; at + static_cast<ssize_t>(size) <= got; at += sizeof(double)) {
      const auto same = [](uint8_t a, uint8_t b) { return static_cast<uint8_t>(~a) == b; };
      if (!std::equal(wanted.begin(), wanted.end(), bytes.begin() + at, same)) continue;
      const uintptr_t address = begin + static_cast<uintptr_t>(at);
      const auto first = reinterpret_cast<uintptr_t>(live.data());
      const bool scanned = address >= reinterpret_cast<uintptr_t>(bytes.data()) &&
                           address < reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
      if (scanned || (address >= first && address < first + live.size() * sizeof(double))) continue;
      double wrong = -1;
      iovec word{&wrong, sizeof(wrong)}, there{reinterpret_cast<void*>(address), sizeof(wrong)};
      found += process_vm_writev(getpid(), &word, 1, &there, 1, 0) == sizeof(wrong) ? 1 : 0;
    }
  }
  return found;
}

/// A moment that does not change is not written again by commits: memory that fails stays wrong until it is
/// read again.
TEST(ShardsJobs, WhatHasChangedInTheMemoryOfACommitIsNamedAndMended) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer maps more memory than can be searched in time";
#endif
  for (const std::string action : {"evict", "stop"}) {
    std::atomic<int> copies{0}, named{0}, done{0}, stopped{0};
    Job job("localhost:3", {{"np", "3"}, {"feed_timeout", "0"}}, [&](const WorkerSeat&, hvd_options* given) {
      EXPECT_EQ(hvd_options_set(given, "divergence_every", "1", nullptr), HVD_OK);
      EXPECT_EQ(hvd_options_set(given, "on_divergence", action.c_str(), nullptr), HVD_OK);
      Trainer trainer;
      trainer.body = [&](Trainer& t) -> hvd_status {
        uint64_t listener = 0;
        const auto count = [](void* counter, const hvd_event* event) {
          const std::string what = event->message;
          EXPECT_NE(what.find("of state key 'm' is not what was committed"), std::string::npos) << what;
          if (event->rank == 1) ++*static_cast<std::atomic<int>*>(counter);
        };
        EXPECT_EQ(
            hvd_register_listener(t.context, HVD_EVENT_DIVERGED, count, &named, nullptr, &listener, nullptr),
            HVD_OK);
        hvd_status status = HVD_OK;
        while (t.step < kSteps && status == HVD_OK) {
          ++t.step;
          status = hvd_state_commit(t.state, nullptr);
          if (status == HVD_OK) status = hvd_barrier(t.context, "committed", nullptr);
          if (status == HVD_OK && t.step == kLost && t.first_rank == 1) {
            const auto middle = t.shard.begin() + std::ssize(t.shard) / 2;
            copies = rot({middle, middle + 8}, t.shard);
          }
          if (status == HVD_OK) status = hvd_barrier(t.context, "rotten", nullptr);
        }
        if (status == HVD_MISMATCH) ++stopped;
        return status == HVD_OK ? hvd_state_restore(t.state, nullptr) : status;
      };
      hvd_error error = HVD_ERROR_INIT;
      if (trainer.run(given, &error) != HVD_OK) return;
      EXPECT_EQ(std::exchange(trainer.step, 0), kSteps);
      EXPECT_EQ(trainer.wrong(), 0);
      ++done;
    });
    job.start();
    std::string sentence;
    job.wait(&sentence);
    EXPECT_GE(copies, 1);
    EXPECT_GE(named, 1) << action;
    EXPECT_EQ(done, action == "evict" ? 3 : 0) << sentence;
    if (action == "stop") { EXPECT_GE(stopped, 1) << sentence; }
  }
}

}  // namespace
}  // namespace hvd::test

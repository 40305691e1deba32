// Restores by the survivors of a loss: several processes at once, each of its part of the state, against as
// many processes that copy the same bytes with memcpy at once. Both in turns, in the same processes, until
// the last is done; into memory that was touched before, as a program's is, and into memory that nobody has
// touched. Prints a row of a table and a JSON object for each.
// Arguments: [rounds, 21 by default] [MiB in all, 256] [processes, 3].
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "copies.h"
#include "state/pieces.h"
#include "state/state.h"

using namespace hvd::bench;

namespace {

/// A meeting of processes, in memory that they share.
class Meeting {
 public:
  explicit Meeting(unsigned processes) {
    void* const all =
        mmap(nullptr, sizeof(pthread_barrier_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) std::exit(1);
    barrier_ = static_cast<pthread_barrier_t*>(all);
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(barrier_, &shared, processes);
  }
  /// The time from the start of all until the last has done it.
  double seconds_of_all(auto call) {
    pthread_barrier_wait(barrier_);
    return seconds_of([&] {
      call();
      pthread_barrier_wait(barrier_);
    });
  }

 private:
  pthread_barrier_t* barrier_;
};

void must(const hvd::Status& status) {
  if (!status.ok()) std::exit(1);
}

/// One of the processes; the first one prints.
void survive(Meeting& meeting, bool first, int rounds, size_t bytes, size_t processes) {
  const Mapping live(bytes), target(bytes), kept(bytes);
  const std::span source(reinterpret_cast<uint64_t*>(live.data), bytes / sizeof(uint64_t));
  std::mt19937_64 random(1);
  for (uint64_t& word : source) word = random();
  std::memset(target.data, 1, bytes);
  std::memcpy(kept.data, live.data, bytes);
  hvd::state::State state(nullptr);
  state.add_tensor("tensor", {source.data(), HVD_DTYPE_UINT64, {static_cast<int64_t>(source.size())}});
  must(state.save());
  must(state.restore());
  const size_t threads = std::max<size_t>(hvd::state::usable_cores() / processes, 1);
  const auto copy = [&] { copy_by(threads, target.data, kept.data, bytes); };
  const auto restore = [&] { must(state.restore()); };
  const auto drop = [&] {
    target.drop();
    live.drop();
  };

  Series touched{"restore_at_once"}, untouched{"restore_at_once_untouched", "memcpy into untouched memory"};
  std::vector<double> copies, restores;
  for (int round = 0; round < rounds; ++round) {
    double took[2] = {};  // who is first takes turns
    for (const int which : {round % 2, 1 - round % 2})
      took[which] = which == 0 ? meeting.seconds_of_all(copy) : meeting.seconds_of_all(restore);
    touched.ratios.push_back(took[1] / took[0]);
    copies.push_back(took[0]);
    restores.push_back(took[1]);
    drop();
    for (const int which : {round % 2, 1 - round % 2})
      took[which] = which == 0 ? meeting.seconds_of_all(copy) : meeting.seconds_of_all(restore);
    untouched.ratios.push_back(took[1] / took[0]);
    if (std::memcmp(live.data, kept.data, bytes) != 0 || std::memcmp(target.data, kept.data, bytes) != 0)
      std::exit(1);
  }
  if (!first) return;
  std::printf("%zu processes, %zu threads of memcpy each: memcpy %.1f ms, restore %.1f ms (medians)\n",
              processes, threads, median(copies) * 1e3, median(restores) * 1e3);
  for (const Series* series : {&touched, &untouched}) print(*series, bytes * processes);
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int index, int otherwise) {
    return argc > index ? std::max(std::atoi(argv[index]), 1) : otherwise;
  };
  const int rounds = argument(1, 21), processes = argument(3, 3);
  const size_t bytes = (static_cast<size_t>(argument(2, 256)) << 20) / static_cast<size_t>(processes) / 8 * 8;
  Meeting meeting(static_cast<unsigned>(processes));
  alarm(600);  // whom another has left alone ends
  for (int p = 1; p < processes; ++p) {
    if (fork() != 0) continue;
    alarm(600);
    survive(meeting, false, rounds, bytes, static_cast<size_t>(processes));
    _exit(0);
  }
  survive(meeting, true, rounds, bytes, static_cast<size_t>(processes));
  int failed = 0;
  for (int p = 1; p < processes; ++p) {
    int status = 0;
    wait(&status);
    failed |= status != 0 ? 1 : 0;
  }
  return failed;
}

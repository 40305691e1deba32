// The thread that begins, tests and abandons MPI's requests.
#include "modules/mpi/engine.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "modules/kit/collectives.h"
#include "modules/kit/net.h"
#include "modules/mpi/exchange.h"
#include "modules/mpi/group.h"
#include "modules/mpi/kept.h"
#include "modules/mpi/runtime.h"
#include "modules/mpi/ulfm.h"

namespace hvdmpi {
namespace {

constexpr size_t kSlots = 8;      // calls under way at most,
constexpr size_t kWindow = 8;     // and this many segments of memory under them: it is what a loss may cost
constexpr int kEagerTurns = 200;  // that found nothing, before the thread begins to doze
constexpr std::chrono::microseconds kDoze{50};
constexpr std::chrono::seconds kPatience{2};
constexpr std::chrono::seconds kAnswering{5};  // as long as peers wait for their own threads
constexpr std::chrono::milliseconds kStep{1};

// Ends this rank's and its peers' calls on these communicators. A message that is on its way to a peer ends
// when that one's MPI has looked at it: so MPI is kept going here, until the peers meet again or would have
// to.
void free_calls(const std::vector<MPI_Comm>& comms, uint64_t generation) {
  for (MPI_Comm comm : comms) revoke(comm);
  const Clock::time_point deadline = Clock::now() + kAnswering;
  while (Runtime::get().reached() <= generation && Clock::now() < deadline) {
    int arrived = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_SELF, &arrived, MPI_STATUS_IGNORE);
    std::this_thread::sleep_for(kStep);
  }
}

}  // namespace

Engine::Engine(const EngineSetup& setup, std::function<Failure(const Failure&)> failed)
    : setup_(setup), failed_(std::move(failed)) {
  // Before there is a failure to cope with.
  for (size_t i = 0; i < kSlots; ++i) free_.push_back(std::make_unique<Slot>());
  if (setup_.comm != MPI_COMM_NULL) comms_.push_back(setup_.comm);
  running_.reserve(kSlots);
}

std::shared_ptr<Engine> Engine::start(const EngineSetup& setup,
                                      std::function<Failure(const Failure&)> failed) {
  auto engine = std::make_shared<Engine>(setup, std::move(failed));
  const hvdkit::BlockSignals block;
  Runtime::get().enter();
  // Detached: a call into MPI may never return.
  std::thread([engine] { engine->run(); }).detach();
  return engine;
}

void Engine::submit(Task task) {
  auto operation = std::make_shared<Operation>(std::move(task), setup_.staged, setup_.segment_bytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) throw Failure(HVD_PEER_LOST, "the generation was given up");
    open_.push_back(operation);
    submitted_.push_back(std::move(operation));
  }
  wake_.notify_one();
}

void Engine::abort() {
  std::vector<OperationPtr> open;
  std::vector<MPI_Comm> comms;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return;
    aborted_ = true;
    if (!in_peace_) Runtime::get().hurry();  // a peer may be gone, for which MPI_Finalize would wait
    open.swap(open_);
    comms = comms_;
  }
  wake_.notify_all();
  if (setup_.fault_tolerant && !comms.empty()) {
    Runtime::get().disturbed();
    Call::start(
        [comms = std::move(comms), generation = setup_.generation] { free_calls(comms, generation); });
  }
  { std::lock_guard<std::mutex> lock(memory_); }  // no copy is under way from here on
  const Failure failure(HVD_PEER_LOST, "the generation was given up");
  hvd_error error = HVD_ERROR_INIT;
  hvdkit::write_error(kName, &error, failure, setup_.generation);
  for (const OperationPtr& operation : open) {
    operation->task.op.done(operation->task.op.done_context, HVD_PEER_LOST, &error);
  }
}

void Engine::leave() {
  std::lock_guard<std::mutex> lock(mutex_);
  in_peace_ = true;
}

void Engine::stop() {
  std::unique_lock<std::mutex> lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  if (!gone_.wait_for(lock, kPatience, [this] { return exited_; })) {
    give_way(thread_);
    Runtime::get().disturbed();
  }
  lock.unlock();
  std::lock_guard<std::mutex> hooks(hooks_);
}

void Engine::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  thread_ = static_cast<int>(syscall(SYS_gettid));
  int idle = 0;
  if (setup_.comm != MPI_COMM_NULL) {
    lock.unlock();
    sweep_kept();
    lock.lock();
  }
  while (!aborted_ && !stopping_) {
    for (; !submitted_.empty(); submitted_.pop_front()) waiting_.push_back(std::move(submitted_.front()));
    if (broken_ || (waiting_.empty() && running_.empty())) {
      idle = 0;
      wake_.wait(lock, [this] { return aborted_ || stopping_ || (!broken_ && !submitted_.empty()); });
      continue;
    }
    lock.unlock();
    const bool moved = turn();
    if (moved) {
      idle = 0;
    } else if (++idle < kEagerTurns) {
      sched_yield();
    }
    lock.lock();
    if (idle >= kEagerTurns) {
      wake_.wait_for(lock, kDoze, [this] { return aborted_ || stopping_ || !submitted_.empty(); });
    }
  }
  lock.unlock();
  leave_behind();
  Runtime::get().leave();
  lock.lock();
  exited_ = true;
  gone_.notify_all();
}

bool Engine::turn() {
  const bool begun = begin();
  const bool ended = test();
  return begun || ended;
}

bool Engine::touch(const std::function<void()>& work) {
  std::lock_guard<std::mutex> memory(memory_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) return false;
  }
  work();
  return true;
}

// Nobody outside takes part, and those who do have all begun what was submitted before: so nobody waits in a
// circle.
void Engine::run_exchange(const Operation& operation) {
  std::unique_lock<std::mutex> memory(memory_);
  int idle = 0;
  const auto turned = [&](bool moved) {
    idle = moved ? 0 : idle + 1;
    memory.unlock();
    if (idle > 0 && idle < kEagerTurns) sched_yield();
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const auto ends = [this] { return aborted_ || stopping_; };
      if (idle >= kEagerTurns) wake_.wait_for(lock, kDoze, ends);
      if (ends()) throw Failure(HVD_PEER_LOST, "the generation was given up");
    }
    memory.lock();
  };
  turned(true);
  const Task& task = operation.task;
  Exchange exchange(setup_.comm, setup_.tag_bound, setup_.segment_bytes, turned);
  hvdkit::Party party{exchange, task.ranks, task.me, task.op.sequence * 2, setup_.segment_bytes};
  hvdkit::run_collective(party, task);
}

MPI_Comm Engine::comm_of(const Operation& operation) {
  const std::vector<int>& ranks = operation.task.ranks;
  if (static_cast<int>(ranks.size()) == setup_.size) return setup_.comm;
  const auto known = parties_.find(ranks);
  if (known != parties_.end()) return known->second;
  // Blocks. All members come: an op is submitted when every rank has it, and in the same order.
  const auto bound = static_cast<uint64_t>(setup_.tag_bound);
  const auto tag = static_cast<int>(bound - 1 - operation.task.op.sequence % (bound - 1));
  MPI_Comm comm = make_group(setup_.comm, ranks, tag);
  std::lock_guard<std::mutex> lock(mutex_);
  comms_.push_back(comm);
  return parties_[ranks] = comm;
}

// Calls of one communicator have to be made in the same order on every rank: one op after the other, and of
// an op one chunk after the other. They overlap all the same.
bool Engine::begin() {
  bool moved = false;
  while (!broken_ && !waiting_.empty()) {
    const OperationPtr operation = waiting_.front();
    try {
      if (operation->alone()) {
        if (!touch([&] { operation->run_alone(); })) return moved;
        waiting_.pop_front();
        complete(operation, nullptr);
        moved = true;
        continue;
      }
      if (operation->all_begun()) {
        waiting_.pop_front();
        continue;
      }
      if (setup_.staged && static_cast<int>(operation->task.ranks.size()) < setup_.size) {
        run_exchange(*operation);
        waiting_.pop_front();
        complete(operation, nullptr);
        moved = true;
        continue;
      }
      if (free_.empty() || !operation->can_begin_chunk() || held() >= setup_.segment_bytes * kWindow)
        return moved;
      if (operation->comm == MPI_COMM_NULL) operation->comm = comm_of(*operation);
      Running next{std::move(free_.back()), operation, 0};
      free_.pop_back();
      bool begun = false;
      try {
        const auto call = [&] { next.number = operation->begin_chunk(*next.slot); };
        begun = touch([&] {
          if (!operation->blocks()) call();
        });
        // Not under the lock of the user's memory, or abort would wait for the peers.
        if (begun && operation->blocks()) call();
      } catch (...) {
        keep(std::move(next.slot));
        throw;
      }
      if (!begun) return moved;
      running_.push_back(std::move(next));
      moved = true;
    } catch (const Failure& failure) { fail(operation, failure); } catch (const std::exception& e) {
      fail(operation, Failure(HVD_INTERNAL, std::string("a collective failed: ") + e.what(), setup_.rank));
    }
  }
  return moved;
}

size_t Engine::held() const {
  size_t bytes = 0;
  for (const Running& running : running_) bytes += running.slot->used;
  return bytes;
}

bool Engine::test() {
  bool moved = false;
  for (size_t i = 0; i < running_.size() && !broken_;) {
    Running& running = running_[i];
    const OperationPtr operation = running.operation;
    int complete_now = 0;
    const int code = MPI_Test(&running.slot->request, &complete_now, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) {
      try {
        check(code, "a collective");
      } catch (const Failure& failure) { fail(operation, failure); }
      return true;
    }
    if (complete_now == 0) {
      ++i;
      continue;
    }
    moved = true;
    if (!touch([&] { operation->end_chunk(*running.slot, running.number); })) return moved;
    free_.push_back(std::move(running.slot));
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    if (operation->finished()) complete(operation, nullptr);
  }
  return moved;
}

void Engine::complete(const OperationPtr& operation, const Failure* failure) {
  std::lock_guard<std::mutex> hooks(hooks_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto place = std::find(open_.begin(), open_.end(), operation);
    if (place == open_.end()) return;  // abort has told
    open_.erase(place);
  }
  const hvd_backend_op& op = operation->task.op;
  if (failure == nullptr) return op.done(op.done_context, HVD_OK, nullptr);
  hvd_error error = HVD_ERROR_INIT;
  hvdkit::write_error(kName, &error, *failure, setup_.generation);
  op.done(op.done_context, failure->status, &error);
}

void Engine::fail(const OperationPtr& operation, const Failure& failure) {
  broken_ = true;
  Failure verdict = failure;
  {
    std::lock_guard<std::mutex> hooks(hooks_);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (aborted_) return;
    }
    verdict = failed_(setup_.fault_tolerant ? blamed(failure, setup_.comm) : failure);
  }
  complete(operation, &verdict);
}

void Engine::leave_behind() {
  if (running_.empty()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!in_peace_) return;  // a peer's message for an op that began there and not here may still come
    }
    Runtime::get().discard(setup_.comm);
    for (const auto& [ranks, comm] : parties_) Runtime::get().discard(comm);
    return;
  }
  Runtime::get().disturbed();
  for (Running& running : running_) {
    if (running.slot != nullptr) keep(std::move(running.slot));
  }
  running_.clear();
}

}  // namespace hvdmpi

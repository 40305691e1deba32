// What an instance does about generations, whatever they are made of: the one that is connected, the next
// one, which has its address and no number yet, and a thread that takes ended ones apart, off the critical
// path.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hvd/backend.hpp"
#include "modules/kit/net.h"
#include "modules/kit/task.h"
#include "numeric/generation_gate.h"

namespace hvdkit {

/// Generation has assign(group), which takes the place that the group gives; connect(group), which may block
/// and throws Failure; leave() in peace; abort() from any thread, bounded, also during connect; teardown()
/// after either, which may block for long.
template <class Generation>
class Generations {
 public:
  using Ptr = std::shared_ptr<Generation>;

  /// make: a generation that has its address.
  explicit Generations(std::function<Ptr()> make) : make_(std::move(make)) {
    const BlockSignals block;
    reaper_ = std::thread([this] { reap(); });
  }
  Generations(const Generations&) = delete;
  Generations& operator=(const Generations&) = delete;

  /// Waits for every end that is under way: a generation's own thread, whose failure the program answers with
  /// abort, may still be in it when the last operation has completed.
  ~Generations() {
    end(take_current(), false);
    end(take_next(), false);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    reaper_.join();
  }

  /// A new one for the next connect. The generation that is connected stays: members of it may not all be out
  /// yet.
  Ptr next() {
    end(take_next(), false);
    Ptr generation = make_();
    std::lock_guard<std::mutex> lock(mutex_);
    return next_ = generation;
  }

  void connect(const hvd_backend_group& group) {
    end(take_current(), false);
    Ptr generation;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (next_ == nullptr) {
        throw Failure(HVD_INVALID, "connect to generation " + std::to_string(group.generation) +
                                       ": address was not called for it");
      }
      if (!gate_.enter(group.generation)) {
        throw Failure(HVD_PEER_LOST, "generation " + std::to_string(group.generation) + " was given up");
      }
      next_->assign(group);
      generation = current_ = std::exchange(next_, nullptr);
    }
    try {
      generation->connect(group);
    } catch (...) {
      std::unique_lock<std::mutex> lock(mutex_);
      Taken taken;
      if (gate_.leave(group.generation)) taken = take(current_);  // else abort has taken it
      lock.unlock();
      generation.reset();  // the reaper frees it, and not this thread
      end(std::move(taken), false);
      throw;
    }
  }

  Ptr current() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (current_ == nullptr) throw Failure(HVD_PEER_LOST, "no generation is connected");
    return current_;
  }

  void abort(uint64_t number) {
    Taken taken;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!gate_.give_up(number)) return;
      taken = take(current_);
    }
    end(std::move(taken), false);
  }

  void disconnect() { end(take_current(), true); }

 private:
  using Taken = std::list<Ptr>;  // one, or none: its end takes no memory

  // Under the mutex.
  Taken take(Ptr& from) {
    Taken taken;
    if (from == nullptr) return taken;
    taken.push_back(from);
    from.reset();
    ++ending_;
    return taken;
  }
  Taken take_current() {
    std::lock_guard<std::mutex> lock(mutex_);
    gate_.leave();
    return take(current_);
  }
  Taken take_next() {
    std::lock_guard<std::mutex> lock(mutex_);
    return take(next_);
  }

  void end(Taken taken, bool in_peace) {
    if (taken.empty()) return;
    if (in_peace) taken.front()->leave();
    taken.front()->abort();
    std::lock_guard<std::mutex> lock(mutex_);
    ended_.splice(ended_.end(), taken);
    --ending_;
    changed_.notify_all();  // under the lock: then the reaper may be the last to touch this
  }

  void reap() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !ended_.empty() || (closing_ && ending_ == 0); });
      if (ended_.empty()) return;
      Ptr generation = std::move(ended_.front());
      ended_.pop_front();
      lock.unlock();
      generation->teardown();
      generation.reset();
      lock.lock();
    }
  }

  const std::function<Ptr()> make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Ptr current_, next_;
  hvd::GenerationGate gate_;  // says whether there is a current_
  int ending_ = 0;            // taken, and not in ended_ yet
  std::list<Ptr> ended_;
  bool closing_ = false;
  std::thread reaper_;
};

/// An instance whose life is that of generations of host memory: what Module asks of a class, but for kName,
/// describe, detail and a constructor. Beyond what Generations asks, Generation has rank(); size();
/// address(), the blob; submit(Task) and send(destination, data, size), which throw HVD_PEER_LOST once it was
/// given up.
template <class Generation>
class GenerationInstance {
 public:
  std::vector<uint8_t> address() { return generations_.next()->address(); }
  void connect(const hvd_backend_group& group) { generations_.connect(group); }
  void submit(const hvd_backend_op& op) {
    const std::shared_ptr<Generation> generation = generations_.current();
    generation->submit(checked(op, HVD_MEMORY_HOST, generation->rank(), generation->size()));
  }
  void send_message(int32_t destination, const void* data, size_t size) {
    const std::shared_ptr<Generation> generation = generations_.current();
    check_message(destination, generation->rank(), generation->size(), data, size);
    generation->send(destination, data, size);
  }
  void abort(uint64_t generation) { generations_.abort(generation); }
  void disconnect() { generations_.disconnect(); }

 protected:
  /// make: a generation that has its address.
  explicit GenerationInstance(std::function<std::shared_ptr<Generation>()> make)
      : generations_(std::move(make)) {}
  ~GenerationInstance() = default;

 private:
  Generations<Generation> generations_;
};

}  // namespace hvdkit

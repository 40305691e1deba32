// The devices of libcuda_double.so: streams are threads, events are marks that they pass.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "modules/nccl/double/double.h"

namespace hvddouble {

inline constexpr CuResult kInvalidValue = 1, kNotInitialized = 3, kNoDevice = 100, kInvalidDevice = 101,
                          kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600, kUnknown = 999;

struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  void reach() {
    const std::lock_guard lock(mutex);
    reached = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return reached; });
  }
  bool is_reached() {
    const std::lock_guard lock(mutex);
    return reached;
  }
};

// Its thread outlives it as long as there is work: destroying a stream does not stop what it was given.
struct Stream {
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;
    bool ended = false;
  };
  explicit Stream(int d) : device(d), queue(std::make_shared<Queue>()) {
    std::thread([queue = queue] {
      std::unique_lock lock(queue->mutex);
      for (;;) {
        queue->changed.wait(lock, [&] { return queue->ended || !queue->work.empty(); });
        if (queue->work.empty()) return;
        const auto work = std::move(queue->work.front());
        queue->work.pop_front();
        lock.unlock();
        work();
        lock.lock();
      }
    }).detach();
  }
  ~Stream() {
    const std::lock_guard lock(queue->mutex);
    queue->ended = true;
    queue->changed.notify_all();
  }
  void add(std::function<void()> work) {
    const std::lock_guard lock(queue->mutex);
    queue->work.push_back(std::move(work));
    queue->changed.notify_all();
  }
  const int device;
  const std::shared_ptr<Queue> queue;
  std::atomic<bool> capturing{false};
};

struct Event {
  int device;
  std::shared_ptr<Mark> mark;
};

struct Context {
  explicit Context(int d) : device(d) {}
  const int device;
  int retained = 0;  // by the module
};

struct Memory {
  size_t size;
  int device;  // -1: host
  bool counted;
};

struct CudaWorld {
  std::mutex mutex;
  std::vector<std::string> calls, violations;
  int64_t fail_at = -1;
  std::string fail_name;
  int fail_result = 0;
  bool initialized = false;
  int devices = 2;
  std::map<int, Context> contexts;
  std::map<int, std::unique_ptr<Stream>> default_streams;  // by device
  std::map<CuStream, std::unique_ptr<Stream>> streams;
  std::set<CuStream> own_streams;  // of the tests
  std::map<CuEvent, std::unique_ptr<Event>> events;
  std::map<uintptr_t, Memory> memory;
  int communicators = 0;
};

CudaWorld& cuda_world();

/// The contexts that this thread has pushed.
std::vector<CuContext>& context_stack();
Context* current();

// Under the world's mutex.
Stream* find_stream(CuStream handle);
const std::pair<const uintptr_t, Memory>* find_memory(uintptr_t at);

void* add_memory(size_t size, int device, bool counted);
CuResult drop_memory(uintptr_t at, const char* what);
CuResult copy_async(void* to, const void* from, size_t size, CuStream stream, const void* on_device);

}  // namespace hvddouble

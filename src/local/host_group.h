// The ranks of one host in one generation, as the algorithms that move payload between them see them: a ring
// of segments of each, and a way to wait for what is in them.
#pragma once

#include <array>
#include <atomic>
#include <coroutine>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "local/bell.h"
#include "local/boxes.h"
#include "local/layout.h"
#include "local/task.h"

namespace hvd::local {

/// Everything is for the one thread at a time that executes operations, but for abort, aborted and wake.
///
/// Rules for what is built on it:
///  - A segment has one writer, its owner. The stamp of what it holds bears the operation's sequence, so that
///    no operation needs to know where the one before it left off, whichever ranks took part in that.
///  - What a peer says is not trusted: compare it with what this operation expects, never use it as an
///    index or a length.
///  - A segment is written again only when it is released. An operation may end before all who read its
///    segments are through: the next one that writes waits for them.
class HostGroup {
 public:
  /// ranks by index, ascending.
  HostGroup(std::shared_ptr<Boxes> boxes, std::vector<int32_t> ranks);
  HostGroup(std::vector<std::shared_ptr<Box>> boxes, std::vector<int32_t> ranks, int32_t index)
      : HostGroup(std::make_shared<Boxes>(std::move(boxes), index), std::move(ranks)) {}

  int32_t index() const { return index_; }
  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  std::span<const int32_t> ranks() const { return ranks_; }  // in the generation
  int32_t rank(int32_t index) const { return ranks_[static_cast<size_t>(index)]; }
  int32_t index_of(int32_t rank) const;  // -1: on another host

  /// Segment number % kSegments of a ring, kSegmentBytes long, aligned to pages.
  uint8_t* segment(uint64_t number) { return own_->segments[number % kSegments]; }
  const uint8_t* segment(int32_t index, uint64_t number) const {
    return box(index).segments[number % kSegments];
  }

  /// What a segment holds: the operation, and which part of it (below 2^24).
  static constexpr uint64_t stamp(uint64_t sequence, uint64_t progress) { return sequence << 24 | progress; }

  /// What `index` has put into a segment of its ring: a stamp, 0 at first.
  uint64_t holds(int32_t index, size_t segment) const {
    return box(index).holds.value[segment].load(std::memory_order_seq_cst);
  }
  /// Whether all who were to read this rank's segment are through: it may be written again.
  bool released(size_t segment) {
    Held& held = held_[segment];
    while (!held.readers.empty()) {
      const Box& reader = box(held.readers.back());
      if (reader.taken[index_].value[segment].load(std::memory_order_seq_cst) != held.stamp) return false;
      held.readers.pop_back();
    }
    return true;
  }
  /// Says that this rank's segment, which was released, holds `stamp`, written completely. Wakes the readers.
  void put(size_t segment, uint64_t stamp, std::span<const int32_t> readers) {
    held_[segment].stamp = stamp;
    held_[segment].readers.assign(readers.begin(), readers.end());
    // A reader may leave as soon as it has read, and its box with what it took.
    for (const int32_t reader : readers) boxes_->reach(reader);
    own_->holds.value[segment].store(stamp, std::memory_order_seq_cst);  // before the bells are looked at
    for (int32_t reader : readers) wake(reader);
  }
  /// Says that this rank reads `stamp` in a segment of `owner` no more. Wakes the owner.
  void take(int32_t owner, size_t segment, uint64_t stamp) {
    own_->taken[owner].value[segment].store(stamp, std::memory_order_seq_cst);
    wake(owner);
  }
  /// Among many ranks, after each operation: waits until all who read this rank's segments are through, since
  /// some of them may not have mapped its box before, and it may be gone after the operation.
  Task settle();

  /// For a task to await: until ready() is true, which is evaluated again after every put or take of a peer
  /// and every wake, maybe by another thread. HVD_PEER_LOST after abort. whose: index of the peer that is
  /// awaited, for the error; -1: several.
  template <class Ready>
  auto wait(Ready ready, int32_t whose = -1) {
    return Wait<Ready>(*this, std::move(ready), whose);
  }

  /// Goes on with a task until it is done, or to where it waits for its peers at the deadline: then false,
  /// and it is to be carried on again before any other. While it waits this thread spins for a moment, then
  /// sleeps.
  bool carry_on(Task& task, Time deadline = Time::max());

  /// Any thread: the one that waits looks at its condition again.
  void wake() { ring(own_->bells.exec); }

  /// Any thread. Every wait, now and later, ends with HVD_PEER_LOST.
  void abort();
  bool aborted() const { return aborted_.load(std::memory_order_seq_cst); }

  /// A board for these ranks, or NULL: they are many, and more than there are processors.
  std::shared_ptr<backend::Board> board() const;

  /// Any thread: how one that waits for ranks of this host looks again and again.
  Spin spin(Time deadline = Time::max()) { return {crowded_, patience_, deadline, placement_.get()}; }

 private:
  struct Held {
    uint64_t stamp = 0;
    std::vector<int32_t> readers;  // who may not be through
  };

  const Box& box(int32_t index) const {
    const Box* const there = boxes_->reach(index);
    return there != nullptr ? *there : nowhere();
  }
  static const Box& nowhere();  // what a lost box reads as
  void wake(int32_t index) {
    if (Box* const there = boxes_->reach(index)) ring(there->bells.exec);
  }
  /// The wait of the task that is carried on.
  struct Waiting {
    bool (*look)(void* wait) = nullptr;  // whether it is over
    void* wait = nullptr;
    std::coroutine_handle<> task;
  };
  template <class Ready>
  class Wait;

  bool await(Time deadline);
  /// Asked before each step: few look at the clock.
  bool late() {
    late_ = deadline_ != Time::max() && ++steps_ % kSteps == 0 && now() >= deadline_;
    return late_;
  }
  Status lost(int32_t whose) const;

  static constexpr uint32_t kSteps = 16;

  const std::shared_ptr<Boxes> boxes_;
  const std::vector<int32_t> ranks_;
  const int32_t index_;
  Box* const own_;
  const bool crowded_;  // more ranks than processors
  Patience patience_;
  const std::shared_ptr<Placement> placement_;
  Sleeper sleeper_;
  std::array<Held, kSegments> held_;
  Waiting waiting_;
  Time deadline_ = Time::max();
  uint32_t steps_ = 0;
  bool late_ = false;  // the deadline passed between two steps
  std::atomic<bool> aborted_{false};
};

template <class Ready>
class HostGroup::Wait {
 public:
  Wait(HostGroup& group, Ready ready, int32_t whose)
      : group_(group), ready_(std::move(ready)), whose_(whose) {}

  bool await_ready() { return !group_.late() && over(); }
  void await_suspend(std::coroutine_handle<> task) {
    group_.waiting_ = {[](void* wait) { return static_cast<Wait*>(wait)->look(); }, this, task};
  }
  Status await_resume() {
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    return std::move(status_);
  }

 private:
  bool over() {
    if (!group_.aborted()) return ready_();
    status_ = group_.lost(whose_);
    return true;
  }
  bool look() noexcept {
    try {
      return over();
    } catch (...) { failure_ = std::current_exception(); }  // the task's
    return true;
  }

  HostGroup& group_;
  Ready ready_;
  const int32_t whose_;
  Status status_;
  std::exception_ptr failure_;
};

}  // namespace hvd::local

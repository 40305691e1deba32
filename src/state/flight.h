// Operations of a sync that are under way, and the buffers that they borrow.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collective/engine.h"
#include "state/memory.h"

namespace hvd::state {

/// The buffers go only when the operations are done. Not copied, used by one thread.
class Flight {
 public:
  /// How long after its deadline it has landed at the latest. The engine has its own deadlines for ranks that
  /// do not come; this is for a backend that does not end, and for one that keeps its buffers after an abort.
  static constexpr Duration kGrace = std::chrono::seconds(15);
  static constexpr Duration kAbortGrace = std::chrono::seconds(30);

  Flight(collective::Engine& engine, Time deadline) : engine_(engine), deadline_(deadline) {}
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;
  ~Flight() { static_cast<void>(land()); }

  /// What operations borrow besides.
  void keep(std::shared_ptr<void> memory) { kept_.push_back(std::move(memory)); }
  uint8_t* room(size_t size) { return buffers_.emplace_back(size).data(); }

  /// Waits where a rank may have no more under way. All ranks submit in one order: nobody waits in a circle.
  std::shared_ptr<collective::Operation> submit(collective::Submission submission) {
    if (operations_.size() >= kMostAtOnce) {
      const Status status = arrive(*operations_[operations_.size() - kMostAtOnce]);
      if (early_.ok()) early_ = status;
    }
    submission.timeout = std::max<Duration>(deadline_ - now(), milliseconds(1));
    operations_.reserve(operations_.size() + 1);
    operations_.push_back(engine_.submit(std::move(submission)));
    return operations_.back();
  }

  /// Waits for one of them. Its buffers are borrowed until land().
  Status arrive(collective::Operation& operation) {
    if (!operation.wait(std::max<Duration>(deadline_ - now(), Duration(0)) + kGrace)) {
      // The buffers can't be taken back from a backend that runs: the generation is given up.
      const std::string whom = operation.waiting_for();
      engine_.fail({HVD_TIMEOUT, fmt::format("state sync is not complete at its deadline: {}",
                                             whom.empty() ? "waiting for the backend" : whom)});
      if (!operation.wait(kAbortGrace)) {
        // It may still write. Better a leak than a write into freed memory.
        static_cast<void>(new std::pair(std::move(buffers_), std::move(kept_)));
        operations_.clear();
        return {HVD_INTERNAL, "state sync: the backend keeps its buffers after an abort"};
      }
    }
    return operation.status();
  }

  /// Waits for all, and gives the first failure. Nothing of this is borrowed afterwards.
  Status land() {
    Status first = std::exchange(early_, {});
    const auto under_way = operations_;
    for (const auto& operation : under_way) {
      const Status status = arrive(*operation);
      if (first.ok() && !status.ok()) first = status;
      if (operations_.empty()) return status;  // given up
    }
    operations_.clear();
    return first;
  }

 private:
  static constexpr size_t kMostAtOnce = collective::kMostUnderWay / 2;

  collective::Engine& engine_;
  const Time deadline_;
  Status early_;  // of what was waited for before land
  std::vector<Memory> buffers_;
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::shared_ptr<collective::Operation>> operations_;
};

/// A rank has no memory for its part of what others are in already: the generation is given up, so that they
/// do not wait for it.
inline Status starved(collective::Engine& engine, int32_t rank, const char* what) noexcept {
  Status status;
  status.code = HVD_PEER_LOST;
  status.rank = rank;
  try {
    status.message = fmt::format("state: rank {} is out of memory in the middle of {}", rank, what);
  } catch (const std::exception&) {}  // then without that
  engine.fail(status);
  return status;
}

/// Whose the next `size` bytes of an allgather are.
struct Brought {
  int32_t rank = -1;
  size_t size = 0;
};

/// Allgather: this rank's `size` bytes, and as many as they bring from the others; `all` is in the order of
/// ranks, and `parts`, if it is not null, as well. A rank that has joined brings none.
inline Status gather(collective::Engine& engine, Time deadline, const char* name, const void* data,
                     size_t size, std::vector<uint8_t>* all, std::vector<Brought>* parts = nullptr) {
  Flight flight(engine, deadline);
  collective::Submission submission;
  submission.name = name;
  submission.kind = collective::Kind::kAllgather;
  submission.inputs = {{const_cast<void*>(data), HVD_DTYPE_UINT8, {static_cast<int64_t>(size)}}};
  const std::shared_ptr<collective::Operation> operation = flight.submit(std::move(submission));
  if (Status status = flight.land(); !status.ok()) return status;
  const size_t length = operation->buffer_size();
  const collective::Buffer buffer = operation->take_buffer();
  all->assign(buffer.get(), buffer.get() + length);
  if (parts == nullptr) return {};
  const std::vector<int64_t>& rows = operation->received_splits();
  const std::vector<int32_t>& ranks = operation->took_part();
  parts->clear();
  for (size_t i = 0; i < (ranks.empty() ? rows.size() : ranks.size()); ++i) {
    const auto rank = ranks.empty() ? static_cast<int32_t>(i) : ranks[i];
    parts->push_back({rank, static_cast<size_t>(rows[static_cast<size_t>(rank)])});
  }
  return {};
}

}  // namespace hvd::state

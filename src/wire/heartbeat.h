// Heartbeats and their answers, which are most of what a driver of many workers reads and sends, without an
// object for each.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "wire/bytes.h"
#include "wire/names.h"

namespace hvd::wire {

/// The message where it lies, if it is a heartbeat: verified, and in aligned bytes. Null: for `decode`.
const Envelope* heartbeat_in(std::span<const uint8_t> bytes);

/// The answer: encoded once, and addressed anew for each worker.
class HeartbeatAnswer {
 public:
  HeartbeatAnswer(std::string job, uint64_t term, std::chrono::milliseconds interval);

  std::chrono::milliseconds interval() const { return interval_; }
  uint64_t term() const { return term_; }
  /// Until the next call. worker and sequence: not 0.
  std::span<const uint8_t> to(uint64_t worker, uint64_t sequence, int64_t sent_ns);

 private:
  const uint64_t term_;
  const std::chrono::milliseconds interval_;
  Bytes bytes_;
  uint8_t *worker_, *sequence_, *sent_;  // where they stand
};

}  // namespace hvd::wire

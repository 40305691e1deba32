// How a job is doing at one moment, as plain values: what every view of it (text, JSON, metrics, the page) reads.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "hvd/driver.h"

namespace hvd::status {

struct Snapshot {
  std::string job;
  hvd_phase phase = HVD_PHASE_NEW;
  int32_t size = 0, workers = 0, slots = 0, resets = 0, hosts_blocked = 0, port = 0;
  uint64_t generation = 0, epoch = 0;
  std::string sentence;  // how the job ended, or what it waits for; "" while it trains
  bool try_again = false;  // a job that has failed may do better at another time
  std::string stall;     // newest report of an operation that waits for somebody, in the current generation
};

}  // namespace hvd::status

// The parts of Supervisor: supervisor.cc carries events and decisions, supervisor_workers.cc judges workers'
// ends, supervisor_status.cc tells, supervisor_takeover.cc takes jobs over, commands.cc answers operators.
#pragma once

#include <optional>
#include <string>

#include "driver/supervisor.h"

namespace hvd::driver {

struct Supervisor::Worker {
  explicit Worker(Loop& loop) : timer(loop) {}
  bool foreign = false;  // no process of this driver's launcher: it lives while it is connected
  std::string host;
  int32_t slot = 0;
  int32_t rank = -1;    // last one
  bool process = true;  // not gone yet
  bool lost = false, done = false;
  bool told = false;  // that it is not wanted, by its connection: it ends by itself
  std::optional<int32_t> exit_status;
  std::optional<Refusal> fate;  // why it may not connect (again)
  Loop::Timer timer;            // until its process is ended, or its loss told
};

}  // namespace hvd::driver

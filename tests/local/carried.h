// Carries tasks on to their end, as an executor's own thread does.
#pragma once

#include <utility>

#include "local/host_group.h"

namespace hvd::local::test {

inline Status carried(HostGroup& group, Task task) {
  EXPECT_TRUE(group.carry_on(task));
  return task.outcome();
}

template <class Ready>
Task waiting(HostGroup& group, Ready ready, int32_t whose = -1) {
  co_return co_await group.wait(std::move(ready), whose);
}

}  // namespace hvd::local::test

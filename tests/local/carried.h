// Carries tasks on to their end, as an executor's own thread does.
#pragma once

#include <gtest/gtest.h>

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

/// The end of a wait for something that a peer never does.
inline Status waited_in_vain(HostGroup& group, int32_t whose) {
  return carried(group, waiting(
                            group, [] { return false; }, whose));
}

}  // namespace hvd::local::test

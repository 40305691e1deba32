// How long tests wait before they fail: every deadline times HVD_TEST_PATIENCE (1 if it is not set).
#pragma once

#include <chrono>
#include <cstdlib>

namespace hvd::test {

/// `deadline` stretched for a slow build or a busy machine. A test that waits this long has failed.
inline std::chrono::milliseconds patient(std::chrono::milliseconds deadline) {
  static const double factor = [] {
    const char* text = std::getenv("HVD_TEST_PATIENCE");
    const double value = text ? std::strtod(text, nullptr) : 1;
    return value > 0 ? value : 1;
  }();
  return std::chrono::duration_cast<std::chrono::milliseconds>(deadline * factor);
}

}  // namespace hvd::test

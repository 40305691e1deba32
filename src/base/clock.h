// Time as a value. Decisions take it as an argument; only the I/O around them reads the clock.
#pragma once

#include <chrono>
#include <cstdint>

namespace hvd {

using Duration = std::chrono::nanoseconds;
using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;

inline Time now() { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }
inline Duration seconds(double s) { return Duration(static_cast<int64_t>(s * 1e9)); }
inline Duration milliseconds(int64_t ms) { return std::chrono::milliseconds(ms); }
inline double to_seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace hvd

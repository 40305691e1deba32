// Counts who is where, and moves a thread by its set of allowed processors.
#include "base/placement.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace hvd {
namespace {

/// Others may write anything.
bool is_processor(int32_t number) { return number >= 0 && number < CPU_SETSIZE; }

}  // namespace

std::optional<int32_t> better_processor(std::span<const int32_t> processors, size_t index,
                                        const cpu_set_t& allowed) {
  const int32_t own = processors[index];
  if (!is_processor(own)) return {};
  std::array<size_t, CPU_SETSIZE> there{};
  for (size_t i = 0; i < processors.size(); ++i) {
    if (is_processor(processors[i])) ++there[static_cast<size_t>(processors[i])];
    if (processors[i] == own && i > index) return {};
  }
  std::optional<size_t> best;
  for (size_t at = 0; at < there.size(); ++at) {
    if (CPU_ISSET(at, &allowed) && (!best || there[at] < there[*best])) best = at;
  }
  if (!best || there[*best] + 2 > there[static_cast<size_t>(own)]) return {};
  return static_cast<int32_t>(*best);
}

int processors_online() { return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)); }

Placement::Placement(size_t size, size_t index, Told told, int online)
    : size_(std::min(size, kMost)),
      index_(index),
      told_(std::move(told)),
      own_(told_(index)),
      online_(online) {}

void Placement::part() {
  const int32_t on = sched_getcpu();
  std::array<int32_t, kMost> processors;
  size_t together = 0;
  for (size_t i = 0; i < size_; ++i) {
    const std::atomic<int32_t>* const told = told_(i);
    processors[i] = told != nullptr ? told->load(std::memory_order_relaxed) : kUnknown;
    if (processors[i] == on) ++together;
  }
  if (together < 2 || index_ >= size_) return;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) < online_) return;
  const std::optional<int32_t> better = better_processor({processors.data(), size_}, index_, set);
  if (!better) return;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(*better), &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) return;
  here();
  std::memset(&set, 0xff, sizeof(set));
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace hvd

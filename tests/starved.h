// Memory that runs out: the n-th allocation of a program fails, for any n.
#pragma once

#include <cstddef>

namespace hvd::test {

/// While it lives, allocation number `at` (from 0) throws std::bad_alloc, once: of the thread that made this,
/// or of any thread. One at a time. The program links starved.cc.
class Starved {
 public:
  enum class Whose { kMine, kAnybodys };
  explicit Starved(size_t at, Whose whose = Whose::kMine);
  Starved(const Starved&) = delete;
  Starved& operator=(const Starved&) = delete;
  ~Starved();
  /// Whether it came so far.
  static bool has_failed();
};

}  // namespace hvd::test

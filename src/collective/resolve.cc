// From what the caller says to what the engine runs.
#include <fmt/format.h>

#include "base/status.h"
#include "collective/kinds/shared.h"

namespace hvd::collective {

void resolve(Submission* submission, int32_t rank, int32_t size) {
  const Row& row = row_of(submission->kind);
  if (row.resolve != nullptr) row.resolve(submission, rank, size);
}

void require_root(const Submission& s, int32_t size) {
  if (s.root >= 0 && s.root < size) return;
  throw Error(HVD_INVALID, fmt::format("{} '{}': root is {}, expected 0 to {}", kind_name(s.kind), s.name,
                                       s.root, size - 1));
}

}  // namespace hvd::collective

// Memory for the notes of ranks that meet on a board, mapped as in a box: pages that nobody touches cost
// nothing.
#pragma once

#include <sys/mman.h>

#include <memory>
#include <new>

#include "backend/board.h"

namespace hvd::testing {

inline std::shared_ptr<backend::BoardNotes[]> board_notes(size_t ranks) {
  const size_t bytes = ranks * sizeof(backend::BoardNotes);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<backend::BoardNotes*>(memory), [bytes](backend::BoardNotes* at) { munmap(at, bytes); }};
}

}  // namespace hvd::testing

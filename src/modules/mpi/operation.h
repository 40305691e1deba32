// One collective as a row of MPI calls, chunk by chunk. Every rank makes the same calls in the same order,
// whatever its own counts are.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "modules/kit/task.h"

namespace hvdmpi {

using hvdkit::Task;

/// One MPI call under way, with all that MPI may touch until it is done, or for ever if it is abandoned.
struct Slot {
  MPI_Request request = MPI_REQUEST_NULL;
  std::unique_ptr<uint8_t[]> memory;
  size_t room = 0, used = 0;
  std::vector<int> in_counts, in_offsets, out_counts, out_offsets;
  uint64_t words[4] = {};

  uint8_t* take(size_t bytes);  // grows; what was in it is lost
};

class Operation {
 public:
  /// staged: MPI works on the slots' memory and never on the user's.
  Operation(Task task, bool staged, size_t segment_bytes);

  Task task;
  MPI_Comm comm = MPI_COMM_NULL;

  /// Nobody else takes part, or there is nothing to move: run_alone does it.
  bool alone() const { return alone_; }
  void run_alone();

  bool can_begin_chunk() const { return issued_ < known_; }
  bool all_begun() const { return agreed_ && issued_ == known_; }
  bool finished() const { return all_begun() && done_ == issued_; }
  /// begin_chunk returns when the call is done, and works on the user's memory meanwhile.
  bool blocks() const { return blocks_; }

  /// Makes the next call; gives its number, for end_chunk. Reads the user's memory. Throws Failure.
  size_t begin_chunk(Slot& slot);
  /// After the call is complete: writes the user's memory.
  void end_chunk(Slot& slot, size_t number);

 private:
  struct Part {
    size_t count, offset;  // elements
  };
  struct Range {
    size_t offset, length;  // elements, in the user's array
  };
  Range range_of(const Part& part, size_t chunk) const;
  size_t length_of(const std::vector<Part>& parts, size_t chunk) const;
  void plan_parts();
  void choose_chunks();
  void pack(uint8_t* to, const std::vector<Part>& parts, size_t chunk) const;
  void unpack(const uint8_t* from, const std::vector<Part>& parts, size_t chunk) const;
  void begin_agreement(Slot& slot);
  void call(Slot& slot, size_t chunk, const void* in, void* out);

  const bool staged_;
  const size_t segment_bytes_;
  const size_t element_;
  const int n_;
  bool alone_ = false;
  bool whole_ = false;  // one call, with the user's own offsets
  bool blocks_ = false;
  bool stage_in_ = true, stage_out_ = true;
  std::vector<Part> in_, out_;  // what this rank gives and gets
  size_t span_ = 0;             // elements of a part in one chunk
  size_t chunks_ = 0;           // of this rank; after the agreement: of all
  bool agrees_ = false;         // alltoall: nobody knows what the others have
  bool agreed_ = true;
  // Calls, the agreement being the first.
  size_t known_ = 0, issued_ = 0, done_ = 0;
};

}  // namespace hvdmpi

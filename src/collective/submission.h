// What a rank submits: one operation by name, with the memory that it borrows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "collective/shape.h"
#include "hvd/hvd.h"

namespace hvd::collective {

/// Each has a row in kinds/table.cc, and travels as its number.
enum class Kind : uint8_t {
  kBroadcast,      // one or more tensors, in place
  kAllreduce,      // one or more tensors
  kAllgather,      // one or more tensors
  kReducescatter,  // one tensor
  kAlltoall,       // one tensor
  kBarrier,
  kBroadcastObject,
  kJoin,
  kAgree,    // maximum of a 64-bit word, carried by the matching messages alone; the core's own
  kSend,     // one tensor, in place, from the root to the one other member
  kReduce,   // one tensor; the root alone has an output of the caller's
  kGather,   // one tensor; the root alone has a result
  kScatter,  // one tensor; the root alone has rows to send
};

struct Tensor {  // borrowed
  void* data = nullptr;
  hvd_dtype dtype = 0;
  Shape shape;
  hvd_memory memory = HVD_MEMORY_HOST;
  int32_t device = 0;      // device memory
  void* stream = nullptr;  // device memory
  int64_t elements() const;
  size_t bytes() const;
  bool operator==(const Tensor&) const = default;
};

struct Submission {
  std::string name;  // user names and the core's own ("hvd....")
  Kind kind = Kind::kBarrier;
  hvd_reduction reduction = HVD_REDUCTION_SUM;  // allreduce, reducescatter
  double prescale = 1, postscale = 1;  // allreduce, reducescatter: of the input before, of the result after
  int32_t root = 0;  // rank in the generation, also with a process set; send, until resolved: the other rank
  std::vector<Tensor> inputs;  // allreduce, allgather, reducescatter, alltoall
  /// As many as inputs; broadcast: the tensors. Allgather, reducescatter, alltoall: data NULL = allocate; or
  /// none at all, which is the same.
  std::vector<Tensor> outputs;
  /// Alltoall: rows that go to each member; reducescatter: rows that each member gets. Empty: evenly
  /// (alltoall: must divide; reducescatter: the first ones get one more).
  std::vector<int64_t> splits;
  std::vector<uint8_t> object;      // broadcast of an object: the root's bytes (moved in)
  uint64_t word = 0;                // agree
  std::string set;                  // process set's name; "" = none
  std::vector<int32_t> members;     // who takes part, ascending, this rank among them; empty: all ranks
  int32_t priority = 0;             // higher runs first among those that are ready
  Duration timeout = seconds(600);  // for ranks that do not submit
  bool meets = false;  // the engine's: it would have met the others on the board if that were granted
  std::shared_ptr<uint8_t[]> scratch;  // reduce: what a rank that is not the root reduces into
};

/// From what a program gives to what the engine takes: see Row::resolve. `members` are those of the set, if
/// there is one. Throws Error(HVD_INVALID).
void resolve(Submission* submission, int32_t rank, int32_t size);

/// Memory from malloc, to be handed to C callers.
struct FreeDeleter {
  void operator()(void* p) const;
};
using Buffer = std::unique_ptr<uint8_t[], FreeDeleter>;

/// NULL if there is no memory.
Buffer allocate(size_t bytes);

}  // namespace hvd::collective

// One row a collective: what a call of it must look like, what becomes of one that all ranks have called, and
// how a rank carries that out. What tells one collective from another stands in its file in this folder, and
// nowhere else in the engine; docs/architecture.md says how to add one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "collective/submission.h"

namespace hvd::backend {
struct Part;
}

namespace hvd::collective {

struct Signature;
class Operation;
class Validation;  // validation.h
class Decision;    // decision.h
struct Answer;     // answer.h
class Plan;        // plan.h

/// Whose data travels within the matching messages as long as it is small.
enum class Travel : uint8_t { kNobodys, kRoots, kEverybodys };

/// On which ranks a program gives something.
enum class Given : uint8_t { kNowhere, kAtRoot, kEverywhere };

/// How a program asks for a collective: its number in hvd_request, and what it takes of that. The root,
/// reduction and factors follow from the row.
struct Form {
  hvd_collective collective;
  const char* name;                // in messages to people
  Given inputs = Given::kNowhere;  // at the root alone: outputs say on every rank what comes
  Given outputs = Given::kNowhere;
  bool group = false;              // any number of tensors
  bool splits = false;             // where there are inputs
  const char* own_name = nullptr;  // of its operation, on all ranks: the program gives no name and no set
};

/// Whether an outcome can be one of an operation.
struct Fit {
  const char* why = nullptr;    // why it can't
  std::optional<size_t> bytes;  // of data that must come with it unless the backend moves them; none: no data
};

struct Row {
  Kind kind;
  const char* name;               // in messages to people
  std::span<const Form> forms{};  // none: the core's own
  hvd_collective collective = 0;  // that a backend must serve; 0: the matching alone answers it
  Travel travels = Travel::kNobodys;
  bool rooted = false;        // ranks must agree in the root
  bool reduces = false;       // ranks must agree in reduction and factors; the engine applies the postscale
  bool in_place = false;      // its tensors are the outputs alone
  bool own_rows = false;      // each rank brings its own first dimension
  bool bytes = false;         // moves bytes, whatever their dtype
  bool object = false;        // what travels is the submission's object, not its tensors
  bool splits = false;        // one number of rows for each member; left out: evenly
  bool equal_splits = false;  // and ranks must agree in them
  bool needs_all = false;     // can't run while one of its ranks has joined
  bool received = false;      // whoever gets its result also learns how many rows each member has sent
  bool joins = false;         // until all ranks have called it, the others run without those that have
  bool patient = false;       // who has not called it has more data, and is not late: it waits for a day

  /// Fills in what follows from who takes part, and need not be given: a send's pair, the splits of a gather
  /// or scatter, where a reduce goes on ranks other than its root. Throws Error(HVD_INVALID).
  void (*resolve)(Submission*, int32_t rank, int32_t size) = nullptr;
  /// This rank's own submission, beyond what is common to all. HVD_INVALID or HVD_UNSUPPORTED.
  Status (*validate)(const Validation&) = nullptr;
  /// Another rank's call, from the network: what is wrong with it, or NULL. Without this it must have no
  /// tensors.
  const char* (*inspect)(const Signature& call, size_t members) = nullptr;
  /// Rank 0: what becomes of an operation that all ranks have called, in agreement. Pure.
  void (*decide)(Decision&) = nullptr;
  /// Each rank: could rank 0 have meant this operation by that outcome? Without this it is complete with any
  /// outcome that needs no backend.
  Fit (*misfit)(const Answer&) = nullptr;
  /// Where results go that have a shape of their own. `discard`: the others need this rank's part even if it
  /// has no room for its result. Without this the outputs are the results.
  Status (*place)(Answer&, bool discard) = nullptr;
  /// The operations of the backend that carry it out.
  Status (*plan)(Plan&, Answer&) = nullptr;
  /// Its tensors as the backend gets them, for those that travel together with others of their kind, scaled
  /// if that is asked for. Without this it travels alone.
  void (*parts)(const Operation&, std::vector<backend::Part>* ret_parts) = nullptr;
  /// The same result as decide and the outcome give, from what has travelled: `data` by rank, each rank's
  /// tensors as they lie in a message. For those whose shapes are the same on all ranks and whose outputs are
  /// the results. Without this, ranks do not meet for it on the board.
  void (*exchange)(const Submission&, int32_t rank, std::span<const uint8_t* const> data) = nullptr;

  /// Whether results come with a shape of their own, in memory that the library may allocate.
  bool makes_output() const { return place != nullptr; }
};

const Row& row_of(Kind kind);
/// Of a number from the network; NULL if no kind has it.
const Row* find_row(uint8_t kind);

/// A collective as a program asks for it.
struct Asked {
  const Row& row;
  const Form& form;
};
/// Of a number in hvd_request; nothing if no row has it.
std::optional<Asked> find_asked(hvd_collective collective);
/// The same; throws Error(HVD_INVALID).
Asked asked_by(hvd_collective collective);

inline const char* kind_name(Kind kind) { return row_of(kind).name; }

}  // namespace hvd::collective

// What can be said about a submission without asking other ranks.
#pragma once

#include <span>
#include <string>

#include "backend/backend.h"
#include "base/status.h"
#include "collective/kinds/kind.h"
#include "collective/messages.h"

namespace hvd::collective {

/// HVD_OK, HVD_INVALID (a bug in the program) or HVD_UNSUPPORTED (no backend in use can).
Status check(const Submission& submission, int32_t rank, int32_t size, const backend::Instance& backend);

/// Fills in what was left out of a submission that passed the check: outputs, splits.
void complete_submission(Submission* submission, int32_t size);

/// A submission under examination, and the rules that several collectives have in common. Each gives HVD_OK
/// or the status to answer with.
class Validation {
 public:
  Validation(const Submission& s, int32_t rank, int32_t size, const backend::Instance& instance)
      : s_(s),
        row_(row_of(s.kind)),
        rank_(rank),
        size_(size),
        instance_(instance),
        backend_(instance.description()) {}

  Status run() const;

  const Submission& submission() const { return s_; }
  Status invalid(const std::string& what) const;
  Status unsupported(const std::string& what) const;
  int64_t members() const {
    return static_cast<int64_t>(s_.members.empty() ? size_t(size_) : s_.members.size());
  }
  /// This rank's place among those that take part.
  int64_t index() const;

  /// Some backend in use takes it.
  Status served(hvd_memory memory, hvd_dtype dtype) const;
  /// By itself, whoever is to serve it.
  Status tensor(const Tensor& t, const char* kind, size_t index, size_t count) const;
  /// Each of them, by some backend in use; all of them together fit into memory and into a message. `what`:
  /// "input"
  Status group(const std::vector<Tensor>& tensors, const char* what) const;
  /// As many outputs as inputs, and at least one; `outputs_needed` false: or no output at all.
  Status pairs(bool outputs_needed) const;
  Status same_dtype(const Tensor& in, const Tensor& out) const;
  Status same_shape(const Tensor& in, const Tensor& out) const;
  Status reduction() const;
  /// A result with another first dimension than what goes in. `out`: NULL if the library allocates.
  Status rows(const Tensor& in, const Tensor* out) const;
  /// One input whose rows are split among the members; `splits`, if given, fit it.
  Status one_with_splits() const;
  /// Device memory: the output has at least so many rows; host memory: this rank alone suffers.
  Status room(int64_t rows) const;

 private:
  Status name() const;
  Status membership() const;
  Status device() const;
  Status no_allocation() const;
  bool on_device() const;

  const Submission& s_;
  const Row& row_;
  const int32_t rank_, size_;
  const backend::Instance& instance_;
  const backend::Description& backend_;
};

/// Row::inspect of collectives with one tensor whose rows are split.
const char* inspect_splits(const Signature& call, size_t members);

bool overlap(const Tensor& a, const Tensor& b);
std::string shape_text(std::span<const int64_t> shape);
inline bool is_device(const Tensor& t) { return t.memory != HVD_MEMORY_HOST; }

}  // namespace hvd::collective

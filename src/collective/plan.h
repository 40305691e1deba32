// The backend's operations that carry out one operation, or several that travel as one.
#pragma once

#include <span>
#include <vector>

#include "backend/backend.h"
#include "collective/answer.h"

namespace hvd::collective {

class Plan {
 public:
  struct Step {
    hvd_backend_op op{};
    std::vector<backend::Part> parts;  // one: becomes the op's own input, output and count
    std::vector<size_t> counts;        // see hvd_backend_op
  };

  /// `alone`: no other rank takes part and no backend is used: the row moves the data by itself.
  Plan(bool alone, bool takes_parts) : alone_(alone), takes_parts_(takes_parts) {}
  bool alone() const { return alone_; }
  /// Whether the backend works on tensors of host memory where they lie: the same on all ranks.
  bool takes_parts() const { return takes_parts_; }
  /// Another operation of the backend, of this one's memory, root and reduction.
  Step& add(const Operation& of, hvd_collective collective, hvd_dtype dtype);
  /// Memory until all steps are done; NULL if there is none.
  uint8_t* scratch(size_t bytes);

  std::vector<Step>& steps() { return steps_; }

 private:
  const bool alone_, takes_parts_;
  std::vector<Step> steps_;
  std::vector<Buffer> scratch_;
};

// What several collectives plan in the same way.

/// Tensors that keep their shapes, as `parts` of the row has them: small ones together, large ones each by
/// themselves, or with the others where the backend takes parts. Follows from the shapes, so equal on all
/// ranks. Alone: each input moves to its output.
Status plan_parts(Plan& plan, Answer& answer);
/// Several operations of one kind as one step.
void plan_together(Plan& plan, std::span<const std::shared_ptr<Operation>> ops);
/// Elements of so many rows of a tensor.
void add_counts(std::vector<size_t>* counts, const Tensor& tensor, std::span<const int64_t> rows);

}  // namespace hvd::collective

// An operation as it is submitted, from what a program gives for it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/arguments.h"
#include "collective/kinds/kind.h"

namespace hvd::api {

/// An operation that is ready to be submitted.
struct Call {
  collective::Submission submission;
  std::vector<hvd_tensor> outputs;  // as the caller gave them
  std::shared_ptr<elastic::ProcessSet> set;
  Duration timeout{0};  // 0: the option's
};

/// What a program gives for an operation. What its collective does not take is left out.
struct Arguments {
  const char* name = nullptr;
  TensorArray inputs{}, outputs{};
  int32_t root = 0;
  hvd_reduction reduction = HVD_REDUCTION_SUM;
  const int64_t* splits = nullptr;  // NULL, or split_count of them
  size_t split_count = 0;
};

inline bool gives(collective::Given which, int32_t root, int32_t rank) {
  return which == collective::Given::kEverywhere || (which == collective::Given::kAtRoot && rank == root);
}

// These throw Error(HVD_INVALID) or Error(HVD_UNSUPPORTED), naming field, value and what was expected.

/// `rank`: the calling one; any if nothing is given at the root alone.
Call make_call(const collective::Asked& asked, const Arguments& given, int32_t rank = -1);
Call object_call(const char* name, const void* data, size_t size, int32_t root, int32_t rank);
/// Bytes of any length on each rank: kAllgather or kGather.
Call bytes_call(collective::Kind kind, const char* name, const void* data, size_t size, int32_t root);

}  // namespace hvd::api

// An operation as it is submitted, from the arguments of the shorthands.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "api/arguments.h"

namespace hvd::api {

/// An operation that is ready to be submitted.
struct Call {
  collective::Submission submission;
  std::vector<hvd_tensor> outputs;  // as the caller gave them
  std::shared_ptr<elastic::ProcessSet> set;
  Duration timeout{0};  // 0: the option's
};

/// With the kind and the name alone.
collective::Submission submission(collective::Kind kind, const char* name);

/// All of these throw Error(HVD_INVALID) or Error(HVD_UNSUPPORTED), naming field, value and what was
/// expected.
Call allreduce_call(const char* name, const TensorArray& inputs, const TensorArray& outputs,
                    hvd_reduction reduction);
Call broadcast_call(const char* name, const TensorArray& tensors, int32_t root);
Call allgather_call(const char* name, const TensorArray& inputs, const TensorArray& outputs);
Call reducescatter_call(const char* name, const hvd_tensor* input, const hvd_tensor* output,
                        hvd_reduction reduction);
/// splits: NULL, or `size` of them.
Call alltoall_call(const char* name, const hvd_tensor* input, const int64_t* splits, int32_t size,
                   const hvd_tensor* output);
Call barrier_call(const char* name);
// Of these the calling rank is asked for: the root has a part of its own.
Call send_call(const char* name, const TensorArray& tensor, int32_t to, int32_t rank);
Call receive_call(const char* name, const TensorArray& tensor, int32_t from);
Call reduce_call(const char* name, const TensorArray& input, const TensorArray& output,
                 hvd_reduction reduction, int32_t root, int32_t rank);
Call gather_call(const char* name, const TensorArray& input, const TensorArray& output, int32_t root,
                 int32_t rank);
/// splits: NULL, or split_count of them.
Call scatter_call(const char* name, const TensorArray& input, const int64_t* splits, size_t split_count,
                  const TensorArray& output, int32_t root, int32_t rank);
Call object_call(const char* name, const void* data, size_t size, int32_t root, int32_t rank);
/// Bytes of any length on each rank: kAllgather or kGather.
Call bytes_call(collective::Kind kind, const char* name, const void* data, size_t size, int32_t root);
Call join_call();

/// Whether results of this kind come with a shape of their own, in memory that the library may allocate.
inline bool makes_output(collective::Kind kind) {
  using collective::Kind;
  return kind == Kind::kAllgather || kind == Kind::kReducescatter || kind == Kind::kAlltoall ||
         kind == Kind::kBroadcastObject || kind == Kind::kGather || kind == Kind::kScatter;
}

}  // namespace hvd::api

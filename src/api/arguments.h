// Checks of a caller's tensors, reductions, factors and splits. All of them throw Error(HVD_INVALID) or
// Error(HVD_UNSUPPORTED), which names the field, its value and what was expected.
#pragma once

#include <string>
#include <vector>

#include "api/handles.h"

namespace hvd::api {

/// A caller's operation name: 1 to 255 bytes, not beginning with "hvd."; "" for NULL: it is numbered.
std::string operation_name(const char* name);

/// An array of tensors of a caller. Its stride is the struct_size of its first entry.
struct TensorArray {
  const hvd_tensor* first = nullptr;
  size_t count = 0;
  const char* name = "";  // "inputs"
  bool single = false;    // one tensor that is no array: it is called by the name alone
};

inline TensorArray one(const hvd_tensor* tensor, const char* name) { return {tensor, 1, name, true}; }

/// The descriptors as the caller gave them, whatever they say.
std::vector<hvd_tensor> read_tensors(const TensorArray& array);
collective::Tensor checked_tensor(const hvd_tensor& value, const TensorArray& array, size_t index);
std::vector<collective::Tensor> checked_tensors(const std::vector<hvd_tensor>& given,
                                                const TensorArray& array);
std::vector<collective::Tensor> checked_tensors(const TensorArray& array);
/// A caller's tensor, checked: struct_size, dtype, dimensions, memory kind.
collective::Tensor tensor_of(const hvd_tensor* tensor, const char* name);
/// Outputs that the library allocates where data is NULL, or all of them if there is no array.
void read_outputs(const TensorArray& array, std::vector<hvd_tensor>* ret_given,
                  std::vector<collective::Tensor>* ret_outputs);

hvd_reduction checked_reduction(hvd_reduction reduction);
/// Finite; 0 means 1.
double checked_factor(double factor, const char* name);
/// Rows for each member, which together are those of the input, the first one of `array`.
std::vector<int64_t> checked_splits(const int64_t* splits, size_t count, const collective::Tensor& input,
                                    const TensorArray& array);

/// Writes dtype, shape and data of a result into a caller's descriptor.
void describe(hvd_tensor* target, const collective::Tensor& result, void* data, const char* name);

/// The i-th entry of a caller's array.
inline hvd_tensor* entry(hvd_tensor* first, size_t index) {
  return reinterpret_cast<hvd_tensor*>(reinterpret_cast<char*>(first) + index * first->struct_size);
}

}  // namespace hvd::api

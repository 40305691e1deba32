// Reads tensors, reductions, factors and splits as a caller gives them.
#include "api/arguments.h"

#include <algorithm>
#include <cmath>

#include "numeric/dtype.h"

namespace hvd::api {

using collective::Tensor;

std::string operation_name(const char* name) {
  if (name == nullptr) return {};
  std::string text = required_text(name, "name");
  if (text.size() > 255) {
    throw Error(HVD_INVALID, fmt::format("name is {} bytes long: expected 1 to 255", text.size()));
  }
  if (text.starts_with("hvd.")) {
    throw Error(HVD_INVALID, fmt::format("name '{}' begins with 'hvd.': that is kept for the library", text));
  }
  return text;
}

namespace {

std::string entry_name(const TensorArray& array, size_t index) {
  return array.single ? std::string(array.name) : fmt::format("{}[{}]", array.name, index);
}

// These run at every operation, so an error makes the tensor's name, and nothing else does.

/// Where it is; whether any backend serves that, and all tensors of a call are in one place, is found out
/// later.
void read_place(const hvd_tensor& tensor, const TensorArray& array, size_t index, Tensor* result) {
  if (tensor.memory == HVD_MEMORY_HOST) return;
  if (tensor.memory != HVD_MEMORY_CUDA) {
    throw Error(HVD_INVALID,
                fmt::format("{}.memory is {}: expected one of hvd_memory, {} to {}", entry_name(array, index),
                            tensor.memory, HVD_MEMORY_HOST, HVD_MEMORY_CUDA));
  }
  if (tensor.device < 0) {
    throw Error(HVD_INVALID,
                fmt::format("{}.device is {}: expected 0 or more", entry_name(array, index), tensor.device));
  }
  result->memory = tensor.memory;
  result->device = tensor.device;
  result->stream = tensor.stream;
}

}  // namespace

Tensor checked_tensor(const hvd_tensor& value, const TensorArray& array, size_t index) {
  if (dtype_size(value.dtype) == 0) {
    throw Error(HVD_INVALID,
                fmt::format("{}.dtype is {}: expected one of hvd_dtype, {} to {}", entry_name(array, index),
                            value.dtype, HVD_DTYPE_UINT8, hvd::kLastDtype));
  }
  if (value.ndim < 0 || value.ndim > HVD_MAX_DIMS) {
    throw Error(HVD_INVALID, fmt::format("{}.ndim is {}: expected 0 to {}", entry_name(array, index),
                                         value.ndim, HVD_MAX_DIMS));
  }
  Tensor result;
  read_place(value, array, index, &result);
  result.data = value.data;
  result.dtype = value.dtype;
  result.shape = collective::Shape(std::span(value.shape, static_cast<size_t>(value.ndim)));
  for (size_t i = 0; i < result.shape.size(); ++i) {
    if (result.shape[i] < 0) {
      throw Error(HVD_INVALID, fmt::format("{}.shape[{}] is {}: expected 0 or more", entry_name(array, index),
                                           i, result.shape[i]));
    }
  }
  return result;
}

/// Calls take(tensor, index) for each, read no further than its struct_size.
template <class Take>
static void read_each(const TensorArray& array, Take take) {
  if (array.count == 0) return;
  const size_t stride = required(array.first, array.name).struct_size;
  for (size_t i = 0; i < array.count; ++i) {
    const auto* tensor =
        reinterpret_cast<const hvd_tensor*>(reinterpret_cast<const char*>(array.first) + i * stride);
    if (tensor->struct_size != stride) {
      throw Error(HVD_INVALID, fmt::format("{}[{}].struct_size is {}: expected {} as in {}[0]", array.name, i,
                                           tensor->struct_size, stride, array.name));
    }
    if (stride >= sizeof(hvd_tensor)) {
      take(*tensor, i);
    } else {  // of an older program; only the first one's size can be wrong in itself
      take(copy_in(tensor, i > 0 ? array.name : entry_name(array, 0).c_str()), i);
    }
  }
}

std::vector<hvd_tensor> read_tensors(const TensorArray& array) {
  std::vector<hvd_tensor> tensors;
  tensors.reserve(array.count);
  read_each(array, [&](const hvd_tensor& tensor, size_t) { tensors.push_back(tensor); });
  return tensors;
}

std::vector<Tensor> checked_tensors(const std::vector<hvd_tensor>& given, const TensorArray& array) {
  std::vector<Tensor> tensors;
  tensors.reserve(given.size());
  for (size_t i = 0; i < given.size(); ++i) tensors.push_back(checked_tensor(given[i], array, i));
  return tensors;
}

std::vector<Tensor> checked_tensors(const TensorArray& array) {
  std::vector<Tensor> tensors;
  tensors.reserve(array.count);
  read_each(array, [&](const hvd_tensor& t, size_t i) { tensors.push_back(checked_tensor(t, array, i)); });
  return tensors;
}

void read_outputs(const TensorArray& array, std::vector<hvd_tensor>* ret_given,
                  std::vector<Tensor>* ret_outputs) {
  if (array.first == nullptr && !array.single) {
    ret_given->resize(array.count, hvd_tensor HVD_TENSOR_INIT);
    return;
  }
  *ret_given = read_tensors(array);
  for (size_t i = 0; i < ret_given->size(); ++i) {
    const hvd_tensor& output = (*ret_given)[i];
    // Device memory of no elements may have no address; where there are some it will be refused.
    if (output.data != nullptr || (output.memory != HVD_MEMORY_HOST && dtype_size(output.dtype) != 0)) {
      ret_outputs->push_back(checked_tensor(output, array, i));
    } else {
      read_place(output, array, i, &ret_outputs->emplace_back());
    }
  }
}

hvd_reduction checked_reduction(hvd_reduction reduction) {
  if (reduction >= HVD_REDUCTION_SUM && reduction <= HVD_REDUCTION_PRODUCT) return reduction;
  throw Error(HVD_INVALID, fmt::format("reduction is {}: expected one of hvd_reduction, {} to {}", reduction,
                                       HVD_REDUCTION_SUM, HVD_REDUCTION_PRODUCT));
}

double checked_factor(double factor, const char* name) {
  if (!std::isfinite(factor))
    throw Error(HVD_INVALID, fmt::format("{} is {}: expected a finite number (0 means 1)", name, factor));
  return factor == 0 ? 1 : factor;
}

std::vector<int64_t> checked_splits(const int64_t* splits, size_t count, const Tensor& input,
                                    const TensorArray& array) {
  if (input.shape.empty()) {
    throw Error(HVD_INVALID, fmt::format("{}.ndim is 0: expected at least one dimension, that of the rows",
                                         entry_name(array, 0)));
  }
  std::vector<int64_t> result(splits, splits + count);
  const int64_t rows = input.shape[0];
  int64_t left = rows;
  for (size_t i = 0; i < count; ++i) {
    if (result[i] < 0)
      throw Error(HVD_INVALID, fmt::format("splits[{}] is {}: expected 0 or more", i, result[i]));
    if (result[i] > left) left = -1;
    if (left < 0) break;
    left -= result[i];
  }
  if (left != 0) {
    throw Error(HVD_INVALID, fmt::format("splits are {}: expected {} in all, the rows of {}",
                                         fmt::join(result, " + "), rows, entry_name(array, 0)));
  }
  return result;
}

Tensor tensor_of(const hvd_tensor* tensor, const char* name) {
  return checked_tensor(copy_in(tensor, name), one(tensor, name), 0);
}

void describe(hvd_tensor* target, const Tensor& result, void* data, const char* name) {
  hvd_tensor value = copy_in(target, name);
  value.data = data;
  value.dtype = result.dtype;
  value.memory = result.memory;
  value.device = result.device;
  value.stream = result.stream;
  value.ndim = static_cast<int32_t>(result.shape.size());
  std::copy(result.shape.begin(), result.shape.end(), value.shape);
  copy_out(target, value, name);
}

}  // namespace hvd::api

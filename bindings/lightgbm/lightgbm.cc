// LightGBM's network as libhvd's collectives: the functions for LGBM_NetworkInitWithFunctions.
//
//   hvd_lightgbm_use(context);                       // in the thread that trains
//   LGBM_NetworkInitWithFunctions(size, rank, (void*)hvd_lightgbm_reduce_scatter,
//                                 (void*)hvd_lightgbm_allgather);
//   ... create data sets and boosters with num_machines=size, tree_learner=data; train ...
//   LGBM_NetworkFree(); hvd_lightgbm_use(NULL);
//
// LightGBM keeps its network by thread, and so is the context here. A failure is thrown, and LightGBM's C
// API, which catches what is thrown in it, returns it as its error: LGBM_GetLastError() is "HVD_NAME: message
// [hvd status rank generation]". The types are those of LightGBM/meta.h, which did not change from 2.1 to
// 4.7.
#include <hvd/hvd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Size = int32_t;  // LightGBM's comm_size_t
using Reduce = void (*)(const char* input, char* output, int type_size, Size bytes);

struct Network {
  hvd_context* context = nullptr;
  uint64_t operations = 0;  // since the network was set up, on every rank alike
};
thread_local Network network;

[[noreturn]] void fail(hvd_status status, const hvd_error& error) {
  throw std::runtime_error(std::string(hvd_status_name(status)) + ": " +
                           std::string(error.message, strnlen(error.message, sizeof error.message)) + " [hvd " +
                           std::to_string(status) + " " + std::to_string(error.rank) + " " +
                           std::to_string(error.generation) + "]");
}

[[noreturn]] void invalid(const std::string& message) {
  hvd_error error = HVD_ERROR_INIT;
  const size_t length = std::min(message.size(), sizeof error.message - 1);
  std::memcpy(error.message, message.data(), length);
  fail(HVD_INVALID, error);
}

hvd_tensor bytes_at(const void* data, int64_t size) {
  hvd_tensor tensor = HVD_TENSOR_INIT;
  tensor.data = const_cast<void*>(data);
  tensor.dtype = HVD_DTYPE_UINT8;
  tensor.ndim = 1;
  tensor.shape[0] = size;
  return tensor;
}

// An operation that has completed, with the memory of its output.
class Operation {
 public:
  Operation(hvd_collective collective, const hvd_tensor& input, const std::vector<int64_t>* splits) {
    if (network.context == nullptr) invalid("hvd_lightgbm_use has not been called in this thread");
    const std::string name = "lightgbm." + std::to_string(++network.operations);
    hvd_request request = HVD_REQUEST_INIT;
    request.collective = collective;
    request.name = name.c_str();
    request.inputs = &input;
    if (splits != nullptr) {
      request.splits = splits->data();
      request.split_count = splits->size();
    }
    hvd_error error = HVD_ERROR_INIT;
    if (hvd_status status = hvd_submit(network.context, &request, &op_, &error); status != HVD_OK) {
      // What is wrong on this rank alone; a mismatch may be known at once, too, and is everybody's.
      if (status == HVD_INVALID || status == HVD_UNSUPPORTED) --network.operations;
      fail(status, error);
    }
    hvd_status status = hvd_op_wait(op_, 0, &error);  // bounded by option operation_timeout
    if (status == HVD_OK) status = hvd_op_get_output(op_, 0, &output_, &error);
    if (status != HVD_OK) {
      hvd_op_destroy(op_);
      fail(status, error);
    }
  }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  ~Operation() { hvd_op_destroy(op_); }

  const char* data() const { return static_cast<const char*>(output_.data); }
  int64_t size() const { return output_.shape[0]; }

 private:
  hvd_op* op_ = nullptr;
  hvd_tensor output_ = HVD_TENSOR_INIT;
};

}  // namespace

#define HVD_LIGHTGBM_API extern "C" __attribute__((visibility("default")))

// The context that operations of this thread go to; NULL: none any more. The caller keeps it alive until
// then.
HVD_LIGHTGBM_API void hvd_lightgbm_use(hvd_context* context) { network = {context, 0}; }

// Every rank's block, of block_len[rank] bytes, to block_start[rank] of every rank's output. `input` may lie
// in `output`.
HVD_LIGHTGBM_API void hvd_lightgbm_allgather(char* input, Size input_size, const Size* block_start, const Size* block_len,
                                             int blocks, char* output, Size output_size) {
  const Operation gathered(HVD_COLLECTIVE_ALLGATHER, bytes_at(input, input_size), nullptr);
  int64_t at = 0;
  for (int i = 0; i < blocks; ++i) {
    if (block_start[i] < 0 || block_len[i] < 0 || int64_t{block_start[i]} + block_len[i] > output_size ||
        at + block_len[i] > gathered.size()) {
      invalid("allgather: " + std::to_string(gathered.size()) + " bytes came, block " + std::to_string(i) + " is " +
              std::to_string(block_len[i]) + " bytes at " + std::to_string(block_start[i]) + " of " +
              std::to_string(output_size));
    }
    std::memcpy(output + block_start[i], gathered.data() + at, static_cast<size_t>(block_len[i]));
    at += block_len[i];
  }
}

// Block i of every rank's input to rank i, where LightGBM's reducer adds them up in the ranks' order, so that
// the sums are the same bits whichever machines they run on.
HVD_LIGHTGBM_API void hvd_lightgbm_reduce_scatter(char* input, Size input_size, int type_size, const Size* block_start,
                                                  const Size* block_len, int blocks, char* output, Size output_size,
                                                  const Reduce& reducer) {
  std::vector<char> packed;  // if the blocks do not follow one another
  std::vector<int64_t> splits(block_len, block_len + blocks);
  int64_t total = 0;
  bool in_order = true;
  for (int i = 0; i < blocks; ++i) {
    if (block_start[i] < 0 || block_len[i] < 0 || int64_t{block_start[i]} + block_len[i] > input_size) {
      invalid("reduce-scatter: block " + std::to_string(i) + " is " + std::to_string(block_len[i]) + " bytes at " +
              std::to_string(block_start[i]) + " of " + std::to_string(input_size));
    }
    in_order = in_order && (block_len[i] == 0 || block_start[i] == block_start[0] + total);
    total += block_len[i];
  }
  const char* send = blocks > 0 ? input + block_start[0] : input;
  if (!in_order) {
    packed.reserve(static_cast<size_t>(total));
    for (int i = 0; i < blocks; ++i) packed.insert(packed.end(), input + block_start[i], input + block_start[i] + block_len[i]);
    send = packed.data();
  }
  const Operation mine(HVD_COLLECTIVE_ALLTOALL, bytes_at(send, total), &splits);
  const int64_t share = blocks > 0 ? mine.size() / blocks : 0;
  if (blocks == 0 || share * blocks != mine.size() || share > output_size) {
    invalid("reduce-scatter: " + std::to_string(mine.size()) + " bytes came from " + std::to_string(blocks) +
            " ranks, with room for " + std::to_string(output_size));
  }
  if (share == 0) return;
  std::memcpy(output, mine.data(), static_cast<size_t>(share));
  for (int i = 1; i < blocks; ++i) reducer(mine.data() + i * share, output, type_size, static_cast<Size>(share));
}

// Jobs of several workers with tensors in device memory, through the public API: Gloo for the messages,
// module nccl over the doubles of its libraries for the data.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "hvd/hvd.h"
#include "modules/nccl/double/nccl_double.h"

namespace {

std::string free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return std::to_string(ntohs(address.sin_port));
}

/// A worker on its own device and stream.
class Worker {
 public:
  Worker(int rank, int size, const std::string& rendezvous)
      : rank(rank), stream(hvddouble::make_stream(rank)) {
    hvd_options* options = nullptr;
    ok(hvd_options_create(&options, &error));
    const std::pair<const char*, std::string> values[] = {
        {"rank", std::to_string(rank)},
        {"size", std::to_string(size)},
        {"rendezvous", rendezvous},
        {"secret", "a secret of this test's own, long enough"},
        {"backend", "gloo,nccl"},
        {"plugin_path", HVD_TEST_MODULE_DIRECTORY},
        {"nccl_library", HVD_NCCL_DOUBLE},
        {"cuda_library", HVD_CUDA_DOUBLE},
        {"init_timeout", "20"},
        {"interface", "127.0.0.1"}};
    for (const auto& [key, value] : values) ok(hvd_options_set(options, key, value.c_str(), &error));
    ok(hvd_init(options, &context, &error));
    hvd_options_destroy(options);
  }
  ~Worker() {
    ok(hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, &error));
    hvd_destroy(context);
    hvddouble::drop_stream(stream);
    for (void* memory : memory_) hvddouble::free_device_memory(memory);
  }
  void ok(hvd_status status) { EXPECT_EQ(status, HVD_OK) << "rank " << rank << ": " << error.message; }
  hvd_tensor tensor(int64_t count, float value) {
    auto* const data = static_cast<float*>(hvddouble::device_memory(static_cast<size_t>(count) * 4, rank));
    for (int64_t i = 0; i < count; ++i) data[i] = value;
    memory_.push_back(data);
    hvd_tensor tensor = HVD_TENSOR_INIT;
    tensor.data = data;
    tensor.dtype = HVD_DTYPE_FLOAT32;
    tensor.ndim = 1;
    tensor.shape[0] = count;
    tensor.memory = HVD_MEMORY_CUDA;
    tensor.device = rank;
    tensor.stream = stream;
    return tensor;
  }
  void expect(const hvd_tensor& tensor, float value) {
    hvddouble::synchronize(stream);
    for (int64_t i = 0; i < tensor.shape[0]; ++i) {
      ASSERT_EQ(static_cast<const float*>(tensor.data)[i], value) << "rank " << rank << " element " << i;
    }
  }

  const int rank;
  const hvddouble::CuStream stream;
  hvd_context* context = nullptr;
  hvd_error error = HVD_ERROR_INIT;

 private:
  std::vector<void*> memory_;
};

template <class Function>
void job(int size, Function function) {
  hvddouble::set_device_count(size);
  hvddouble::reset();
  const std::string rendezvous = "127.0.0.1:" + free_port();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Worker worker(rank, size, rendezvous);
      function(worker);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(hvddouble::alive(), "");
  for (const std::string& violation : hvddouble::violations()) ADD_FAILURE() << violation;
}

TEST(NcclJob, OperationsOnDeviceTensors) {
  job(3, [](Worker& w) {
    hvd_backend_choice_info selection{};
    selection.struct_size = sizeof(selection);
    w.ok(hvd_get_backend_choice(w.context, HVD_MEMORY_CUDA, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE,
                                &selection, &w.error));
    EXPECT_STREQ(selection.name, "nccl");
    // A group of small tensors, which are launched together.
    std::vector<hvd_tensor> group;
    for (int i = 1; i <= 20; ++i) group.push_back(w.tensor(10 * i, static_cast<float>(w.rank + i)));
    w.ok(hvd_grouped_allreduce(w.context, "gradients", group.data(), group.data(), group.size(),
                               HVD_REDUCTION_AVERAGE, &w.error));
    for (int i = 1; i <= 20; ++i) w.expect(group[static_cast<size_t>(i - 1)], static_cast<float>(1 + i));
    hvd_tensor weights = w.tensor(100, static_cast<float>(w.rank));
    w.ok(hvd_broadcast(w.context, "weights", &weights, 1, &w.error));
    w.expect(weights, 1);
    const hvd_tensor part = w.tensor(5 + w.rank, 7);
    hvd_tensor all = w.tensor(18, 0);
    w.ok(hvd_allgather(w.context, "parts", &part, &all, &w.error));
    w.expect(all, 7);
    // Host memory goes its own way beside it.
    float host = 1;
    hvd_tensor on_host = HVD_TENSOR_INIT;
    on_host.data = &host;
    on_host.dtype = HVD_DTYPE_FLOAT32;
    w.ok(hvd_allreduce(w.context, "host", &on_host, &on_host, HVD_REDUCTION_SUM, &w.error));
    EXPECT_EQ(host, 3);
  });
}

TEST(NcclJob, ACommitOfDeviceTensorsComesBack) {
  job(2, [](Worker& w) {
    hvd_tensor weights = w.tensor(1000, 1);
    hvd_state* state = nullptr;
    w.ok(hvd_state_create(w.context, &state, &w.error));
    w.ok(hvd_state_add_tensor(state, "weights", &weights, &w.error));
    w.ok(hvd_state_commit(state, &w.error));
    auto* const data = static_cast<float*>(weights.data);
    hvddouble::enqueue(w.stream,
                       [data] { std::fill(data, data + 1000, 2.F); });  // the next step, behind the copy
    w.expect(weights, 2);
    w.ok(hvd_state_restore(state, &w.error));
    w.expect(weights, 1);
    hvd_state_destroy(state);
  });
}

}  // namespace

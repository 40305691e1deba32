// Module nccl with the real libraries, on a machine with a GPU: ranks are processes of this program. With
// fewer GPUs than ranks they share one, which NCCL allows from 2.30 on (NCCL_MULTI_RANK_GPU_ENABLE); an
// earlier one takes ranks with different NCCL_HOSTID for ranks on different hosts. HVD_NCCL_LIBRARY and
// HVD_CUDA_LIBRARY name libraries that are not found by themselves.
#include "modules/nccl/real.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <numeric>

#include "modules/host/values.h"
#include "numeric/dtype.h"

extern char** environ;

namespace hvd::backend::test {
namespace {

std::vector<uint8_t> values(hvd_dtype dtype, int rank, size_t count) {
  std::vector<uint8_t> data(count * dtype_size(dtype));
  for (size_t i = 0; i < count; ++i)
    store(dtype, data.data() + i * dtype_size(dtype), value_at(dtype, rank, i));
  return data;
}
std::vector<uint8_t> reduced(hvd_dtype dtype, hvd_reduction reduction, int size, size_t first, size_t count) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<uint8_t> data(count * dtype_size(dtype));
  for (size_t i = 0; i < count; ++i) {
    store(dtype, data.data() + i * dtype_size(dtype), expected_at(dtype, reduction, ranks, first + i));
  }
  return data;
}

/// An average of floats: NCCL multiplies each value by 1/n, rounded, so that the result may be off in the
/// last bits.
bool is_rounded(hvd_dtype dtype, hvd_reduction reduction) {
  return reduction == HVD_REDUCTION_AVERAGE && dtype >= HVD_DTYPE_FLOAT16 && dtype <= HVD_DTYPE_FLOAT64;
}

/// The same numbers but for the lowest bits of each: floats that are nearly the same are so as integers, too.
void require_near(hvd_dtype dtype, const std::vector<uint8_t>& got, const std::vector<uint8_t>& wanted,
                  const std::string& text) {
  constexpr int64_t kLast = 2;
  const size_t element = dtype_size(dtype);
  for (size_t i = 0; i < wanted.size(); i += element) {
    int64_t a = 0, b = 0;
    std::memcpy(&a, got.data() + i, element);
    std::memcpy(&b, wanted.data() + i, element);
    Rank::require(std::abs(a - b) <= kLast,
                  fmt::format("{}: element {} is {:#x}, expected {:#x}", text, i / element, a, b));
  }
}

void collectives(Rank& r) {
  r.connect(1);
  constexpr size_t kCount = 1003;
  void* const in = r.gpu.allocate(1 << 20);
  void* const out = r.gpu.allocate(1 << 20);
  for (hvd_dtype dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype) {
    const size_t element = dtype_size(dtype);
    const std::string name = dtype_name(dtype);
    for (hvd_reduction reduction = HVD_REDUCTION_SUM; reduction <= HVD_REDUCTION_PRODUCT; ++reduction) {
      Pending pending;
      hvd_backend_op op = r.op(pending, HVD_COLLECTIVE_ALLREDUCE);
      op.dtype = dtype;
      op.reduction = reduction;
      op.input = in;
      op.output = reduction == HVD_REDUCTION_MAX ? in : out;
      op.count = kCount;
      const bool refused = dtype == HVD_DTYPE_UINT16 || dtype == HVD_DTYPE_INT16 ||
                           (dtype == HVD_DTYPE_BOOL && reduction == HVD_REDUCTION_AVERAGE);
      if (refused) {
        Rank::require(r.instance->submit(op).code == HVD_UNSUPPORTED, name + " was not refused");
        continue;
      }
      r.gpu.put(in, values(dtype, r.rank, kCount));
      r.run_ok(op, pending);
      const std::vector<uint8_t> got = r.gpu.take(op.output, kCount * element);
      const std::vector<uint8_t> wanted = reduced(dtype, reduction, r.size, 0, kCount);
      const std::string what = "allreduce of " + name + " reduction " + std::to_string(reduction);
      if (is_rounded(dtype, reduction)) {
        require_near(dtype, got, wanted, what);
      } else {
        Rank::require_same(got, wanted, what);
      }
    }
    Pending pending;
    hvd_backend_op op = r.op(pending, HVD_COLLECTIVE_BROADCAST);
    op.dtype = dtype;
    op.root = r.size - 1;
    op.output = in;
    op.count = kCount;
    r.gpu.put(in, values(dtype, r.rank, kCount));
    r.run_ok(op, pending);
    Rank::require(r.gpu.take(in, kCount * element) == values(dtype, r.size - 1, kCount),
                  "broadcast of " + name);
  }
  const auto n = static_cast<size_t>(r.size);
  const auto me = static_cast<size_t>(r.rank);
  for (const bool even : {true, false}) {
    std::vector<size_t> counts(n, 100);
    if (!even) {
      for (size_t i = 0; i < n; ++i) counts[i] = i == 0 ? 0 : 31 * i + 7;
    }
    const size_t total = std::accumulate(counts.begin(), counts.end(), size_t{0});
    const size_t first = std::accumulate(counts.begin(), counts.begin() + r.rank, size_t{0});
    {
      Pending pending;
      hvd_backend_op op = r.op(pending, HVD_COLLECTIVE_ALLGATHER);
      op.dtype = HVD_DTYPE_INT16;
      op.input = in;
      op.output = out;
      op.count = counts[me];
      op.counts = counts.data();
      r.gpu.put(in, values(HVD_DTYPE_INT16, r.rank, counts[me]));
      r.run_ok(op, pending);
      std::vector<uint8_t> wanted;
      for (size_t i = 0; i < n; ++i) {
        const auto part = values(HVD_DTYPE_INT16, static_cast<int>(i), counts[i]);
        wanted.insert(wanted.end(), part.begin(), part.end());
      }
      Rank::require(r.gpu.take(out, total * 2) == wanted, even ? "allgather" : "uneven allgather");
    }
    {
      Pending pending;
      hvd_backend_op op = r.op(pending, HVD_COLLECTIVE_REDUCESCATTER);
      op.dtype = HVD_DTYPE_INT32;
      op.reduction = HVD_REDUCTION_AVERAGE;
      op.input = in;
      op.output = out;
      op.count = total;
      op.counts = counts.data();
      r.gpu.put(in, values(HVD_DTYPE_INT32, r.rank, total));
      r.run_ok(op, pending);
      Rank::require(r.gpu.take(out, counts[me] * 4) ==
                        reduced(HVD_DTYPE_INT32, HVD_REDUCTION_AVERAGE, r.size, first, counts[me]),
                    even ? "reducescatter" : "uneven reducescatter");
    }
    {
      const auto sent = [&](size_t from, size_t to) { return even ? 64 : (from * 3 + to * 5) % 4 * 50; };
      std::vector<size_t> splits;
      std::vector<uint8_t> mine, wanted;
      for (size_t to = 0; to < n; ++to) {
        splits.push_back(sent(me, to));
        mine.insert(mine.end(), sent(me, to) * 2, static_cast<uint8_t>(16 * me + to));
      }
      for (size_t from = 0; from < n; ++from) {
        splits.push_back(sent(from, me));
        wanted.insert(wanted.end(), sent(from, me) * 2, static_cast<uint8_t>(16 * from + me));
      }
      Pending pending;
      hvd_backend_op op = r.op(pending, HVD_COLLECTIVE_ALLTOALL);
      op.dtype = HVD_DTYPE_UINT16;
      op.input = in;
      op.output = out;
      op.count = mine.size() / 2;
      op.counts = splits.data();
      r.gpu.put(in, mine);
      r.run_ok(op, pending);
      Rank::require(r.gpu.take(out, wanted.size()) == wanted, even ? "alltoall" : "uneven alltoall");
    }
  }
  // Many tensors in one group, and a barrier of the streams.
  std::vector<Part> parts;
  for (size_t i = 0; i < 40; ++i) {
    auto* const data = static_cast<uint8_t*>(in) + i * 4096;
    r.gpu.put(data, values(HVD_DTYPE_FLOAT32, r.rank, i * 20));
    parts.push_back({data, data, i * 20});
  }
  Pending pending;
  hvd_backend_op op = r.op(pending, HVD_COLLECTIVE_ALLREDUCE);
  op.dtype = HVD_DTYPE_FLOAT32;
  op.reduction = HVD_REDUCTION_SUM;
  r.run_ok(op, pending, parts);
  for (size_t i = 0; i < 40; ++i) {
    Rank::require(r.gpu.take(parts[i].output, i * 80) ==
                      reduced(HVD_DTYPE_FLOAT32, HVD_REDUCTION_SUM, r.size, 0, i * 20),
                  "part " + std::to_string(i));
  }
  Pending barrier;
  r.run_ok(r.op(barrier, HVD_COLLECTIVE_BARRIER), barrier);
  r.gpu.take(in, 0);
  r.meet("over");
  r.instance->disconnect();
}

// Many operations in flight, each input written by the stream just before and overwritten just after.
void streams(Rank& r) {
  r.connect(1);
  constexpr size_t kBytes = 64 << 20;
  void* const data = r.gpu.allocate(kBytes);
  void* const result = r.gpu.allocate(kBytes);
  void* host = nullptr;
  Rank::expect(r.instance->host_alloc(HVD_MEMORY_CUDA, 2 * kBytes, &host));
  auto* const ones = static_cast<float*>(host);
  float* const back = ones + kBytes / 4;
  std::fill(ones, ones + kBytes / 4, 1.F);
  std::vector<std::unique_ptr<Pending>> pending;
  for (int round = 0; round < 10; ++round) {
    Gpu::check(r.gpu.cu.cuMemcpyHtoDAsync_v2(Gpu::at(data), ones, kBytes, r.gpu.stream), "cuMemcpyHtoDAsync");
    pending.push_back(std::make_unique<Pending>());
    hvd_backend_op op = r.op(*pending.back(), HVD_COLLECTIVE_ALLREDUCE);
    op.dtype = HVD_DTYPE_FLOAT32;
    op.reduction = HVD_REDUCTION_SUM;
    op.input = data;
    op.output = result;
    op.count = kBytes / 4;
    Rank::expect(r.instance->submit(op));
    Rank::expect(pending.back()->wait());
    Gpu::check(r.gpu.cu.cuMemcpyDtoDAsync_v2(Gpu::at(data), Gpu::at(result), kBytes, r.gpu.stream),
               "cuMemcpyDtoDAsync");
  }
  // A copy stands in the stream as well: it takes the result, and not what the stream writes afterwards.
  void* ticket = nullptr;
  const std::vector<hvd_backend_copy> copies = {{back, result, kBytes}};
  Rank::expect(r.instance->copy(HVD_MEMORY_CUDA, r.gpu.device, r.gpu.stream, false, copies, &ticket));
  Gpu::check(r.gpu.cu.cuMemcpyHtoDAsync_v2(Gpu::at(result), ones, kBytes, r.gpu.stream), "cuMemcpyHtoDAsync");
  Rank::expect(r.instance->copy_wait(HVD_MEMORY_CUDA, ticket, kSoon));
  for (size_t i = 0; i < kBytes / 4; ++i) {
    if (back[i] != static_cast<float>(r.size)) throw std::runtime_error("element " + std::to_string(i));
  }
  const std::vector<hvd_backend_copy> there = {{result, back, kBytes}};
  Rank::expect(r.instance->copy(HVD_MEMORY_CUDA, r.gpu.device, r.gpu.stream, true, there, &ticket));
  Rank::expect(r.instance->copy_wait(HVD_MEMORY_CUDA, ticket, kSoon));
  const auto read = r.gpu.take(result, kBytes);
  Rank::require(std::memcmp(read.data(), back, kBytes) == 0, "what was copied there");
  r.instance->host_free(HVD_MEMORY_CUDA, host);
  r.meet("over");
  r.instance->disconnect();
}

Status sum(Rank& r, void* data, Pending& pending) {
  hvd_backend_op op = r.op(pending, HVD_COLLECTIVE_ALLREDUCE);
  op.dtype = HVD_DTYPE_FLOAT32;
  op.reduction = HVD_REDUCTION_SUM;
  op.input = op.output = data;
  op.count = 1000;
  if (Status status = r.instance->submit(op); !status.ok()) return status;
  return pending.wait();
}

// contract 3: the last rank is missing, first on the device, then in the making of a communicator.
void aborted(Rank& r) {
  void* const data = r.gpu.allocate(4000);
  const bool missing = r.rank == r.size - 1;
  r.connect(1);
  Pending first;
  Rank::expect(sum(r, data, first));
  r.gpu.take(data, 4);
  r.meet("begun");
  if (!missing) {
    Pending held;
    Rank::expect(sum(r, data, held));  // queued; the others' streams stand still
  }
  r.meet("held");
  r.instance->abort(1);
  r.gpu.take(data, 4);  // the stream goes on
  Pending later;
  Rank::require(sum(r, data, later).code == HVD_PEER_LOST, "an operation after the abort");
  r.meet("lost");

  r.connect(2);
  if (!missing) {
    Pending making;
    hvd_backend_op op = r.op(making, HVD_COLLECTIVE_BARRIER);
    Rank::expect(r.instance->submit(op));
    Rank::require(making.wait(std::chrono::seconds(1)).code == HVD_TIMEOUT,
                  "a communicator without its last rank");
    r.instance->abort(2);
    Rank::require(making.wait().code == HVD_PEER_LOST, "the operation that waited for a communicator");
  }
  r.instance->abort(2);
  r.meet("lost again");

  r.connect(3);
  r.gpu.put(data, values(HVD_DTYPE_FLOAT32, r.rank, 1000));
  Pending again;
  Rank::expect(sum(r, data, again));
  Rank::require(r.gpu.take(data, 4000) == reduced(HVD_DTYPE_FLOAT32, HVD_REDUCTION_SUM, r.size, 0, 1000),
                "after two losses");
  r.meet("over");
  r.instance->disconnect();
}

int child(int rank, int size, const std::string& what, const fs::path& directory) {
  try {
    Rank r(rank, size, directory);
    if (what == "collectives") collectives(r);
    if (what == "streams") streams(r);
    if (what == "aborted") aborted(r);
    r.instance.reset();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d of %d, %s: %s\n", rank, size, what.c_str(), e.what());
    return 1;
  }
}

class NcclReal : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(NcclReal, Runs) {
  const auto [what, size] = GetParam();
  // CUDA is asked in a child: this process stays one that can start others.
  const fs::path directory =
      fs::temp_directory_path() / ("hvd_nccl_real_" + std::to_string(getpid()) + what + std::to_string(size));
  fs::create_directories(directory);
  const auto start = [&](const std::vector<std::string>& arguments, const std::vector<std::string>& more) {
    std::vector<std::string> environment = more;
    for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
    std::vector<char*> argv, envp;
    std::string self = "/proc/self/exe";
    argv.push_back(self.data());
    std::vector<std::string> own = arguments;
    for (std::string& argument : own) argv.push_back(argument.data());
    for (std::string& entry : environment) envp.push_back(entry.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    pid_t pid = -1;
    EXPECT_EQ(posix_spawn(&pid, self.c_str(), nullptr, nullptr, argv.data(), envp.data()), 0);
    return pid;
  };
  const auto end = [](pid_t pid, std::chrono::seconds most) {
    const auto deadline = std::chrono::steady_clock::now() + most;
    int status = -1;
    while (waitpid(pid, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() >= deadline) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        return -2;
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  const int probe = end(start({"--probe", (directory / "why").string()}, {}), std::chrono::seconds(60));
  if (probe != 0) {
    std::string why;
    std::getline(std::ifstream(directory / "why"), why);
    fs::remove_all(directory);
    ASSERT_EQ(probe, 77) << "the probe for a GPU ended with " << probe;
    GTEST_SKIP() << "no GPU for this test: " << why;
  }
  int devices = 0, version = 0;
  std::ifstream(directory / "why") >> devices >> version;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::string> more;
    if (devices < size && version >= 230) more.emplace_back("NCCL_MULTI_RANK_GPU_ENABLE=1");
    if (devices < size && version < 230) more.push_back("NCCL_HOSTID=hvd-rank-" + std::to_string(rank));
    pids.push_back(
        start({"--rank", std::to_string(rank), std::to_string(size), what, directory.string()}, more));
  }
  for (int rank = 0; rank < size; ++rank) {
    EXPECT_EQ(end(pids[static_cast<size_t>(rank)], std::chrono::seconds(150)), 0)
        << what << ": rank " << rank;
  }
  fs::remove_all(directory);
}

INSTANTIATE_TEST_SUITE_P(Ranks, NcclReal,
                         testing::Combine(testing::Values("collectives", "streams", "aborted"),
                                          testing::Values(2, 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
                         });

// 0: the module opens and there is a device, with their number and NCCL's version in a file; 77: not, with
// the reason.
int probe(const fs::path& path) {
  Gpu gpu;
  std::string why = gpu.open();
  if (why.empty()) {
    std::shared_ptr<Module> module;
    std::unique_ptr<Instance> instance;
    Status status = load_module(HVD_NCCL_MODULE, &module);
    if (status.ok())
      status = open_instance(module, libraries(), HostHandlers(), std::make_shared<Logger>(), &instance);
    why = status.message;
    int major = 0, minor = 0;
    if (status.ok() && std::sscanf(instance->detail().c_str(), "NCCL %d.%d", &major, &minor) == 2) {
      std::ofstream(path) << gpu.count << ' ' << major * 100 + minor << '\n';
      return 0;
    }
  }
  std::ofstream(path) << why << '\n';
  return 77;
}

}  // namespace

int main_of(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--probe") == 0) return probe(argv[2]);
  if (argc == 6 && std::strcmp(argv[1], "--rank") == 0) {
    return child(std::atoi(argv[2]), std::atoi(argv[3]), argv[4], argv[5]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

}  // namespace hvd::backend::test

int main(int argc, char** argv) { return hvd::backend::test::main_of(argc, argv); }

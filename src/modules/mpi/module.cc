// The module's table.
//
// What the module expects of its environment (Open MPI):
// - A process that mpirun or srun started in a group: nothing. It finds its peers in MPI_COMM_WORLD.
// - A process that was started apart (by a driver): OMPI_MCA_pmix_server_uri says where the job's ompi-server is
//   ("file:<path>" or its URI), and orted is in PATH or beside libmpi. From Open MPI 5 on HVD_PMIX_SERVER says how to reach
//   hvd-pmix-server (see pmix_client.h), and HVD_WORKER who this is. What OMPI_COMM_WORLD_*, PMIX_* and PMI_* variables
//   a launcher around the driver has left are not in its environment: they would make it look for a group that it isn't in.
// - OMPI_MCA_* variables that are set are left alone. Those that the module would like, and sets before MPI_Init
//   where they are missing: see Runtime::prepare. (Open MPI itself writes to the process's environment there.)
// What it expects with MPICH: a launcher around the driver has left nothing there either (PMI_*); a process that was started
// apart launches itself (pmi.h).
// Processes started apart talk over TCP, on one host too: Open MPI finds out who shares a host only for those of one
// launch.
#include <charconv>
#include <cstring>

#include "modules/kit/generations.h"
#include "modules/mpi/generation.h"

namespace hvdmpi {
namespace {

using hvdkit::Generations;

class Instance {
 public:
  Instance(const hvd_backend_host& host, Config config)
      : host_(host),
        config_(std::move(config)),
        generations_([this] { return std::make_shared<Generation>(config_, host_); }) {}

  const Config& config() const { return config_; }
  Generations<Generation>& generations() { return generations_; }

 private:
  const hvd_backend_host host_;
  const Config config_;
  Generations<Generation> generations_;
};

template <class Function>
hvd_status guarded(hvd_error* error, uint64_t generation, Function function) noexcept {
  return hvdkit::guarded(kName, error, generation, std::move(function));
}

Instance& of(void* instance) { return *static_cast<Instance*>(instance); }

Clock::time_point deadline_of(int64_t timeout_ns) {
  return Clock::now() + std::chrono::nanoseconds(timeout_ns);
}

hvd_status open(const hvd_backend_host* host, const hvd_backend_option* options, size_t option_count,
                void** ret_instance, hvd_error* error) {
  return guarded(error, 0, [&] {
    if (host == nullptr || host->struct_size < sizeof(hvd_backend_host)) {
      throw Failure(HVD_INVALID, "the host's table is missing or too small");
    }
    Config config;
    std::string route;
    for (size_t i = 0; i < option_count; ++i) {
      const std::string key = options[i].key;
      const std::string value = options[i].value;
      if (key == "interface") config.interface = value;
      if (key == "route") route = value;
      if (key == "elastic") {
        const bool yes = value == "1" || value == "true";
        if (!yes && value != "0" && value != "false") {
          throw Failure(HVD_INVALID, "option elastic is '" + value + "': expected 0 or 1");
        }
        config.elastic = yes;
      }
      if (key == "segment_bytes") {
        const auto [end, code] =
            std::from_chars(value.data(), value.data() + value.size(), config.segment_bytes);
        if (code != std::errc() || *end != 0 || config.segment_bytes < 64 ||
            config.segment_bytes > size_t{1} << 30) {
          throw Failure(HVD_INVALID,
                        "option segment_bytes is '" + value + "': expected an integer from 64 to 1073741824");
        }
      }
    }
    config.ip = hvdkit::local_address(config.interface, route);
    if (!config.interface.empty()) config.interface = config.ip;
    Runtime::get().prepare(config.interface, config.ip);
    auto instance = std::make_unique<Instance>(*host, config);
    Runtime::get().begin();  // takes its time: meanwhile the job forms
    *ret_instance = instance.release();
  });
}

hvd_status address(void* instance, void* data, size_t* size, hvd_error* error) {
  return guarded(error, 0, [&] {
    const std::vector<uint8_t> blob = of(instance).generations().next()->address();
    hvdkit::give_address(blob.data(), blob.size(), data, size);
  });
}

hvd_status connect(void* instance, const hvd_backend_group* group, hvd_error* error) {
  return guarded(error, group->generation, [&] {
    hvdkit::check_group(*group);
    of(instance).generations().connect(*group);
  });
}

hvd_status submit(void* instance, const hvd_backend_op* op, hvd_error* error) {
  return guarded(error, 0, [&] {
    const std::shared_ptr<Generation> generation = of(instance).generations().current();
    generation->submit(hvdkit::checked(*op, generation->rank(), generation->size()));
  });
}

hvd_status send_message(void* instance, int32_t destination, const void* data, size_t size,
                        hvd_error* error) {
  return guarded(error, 0, [&] {
    const std::shared_ptr<Generation> generation = of(instance).generations().current();
    hvdkit::check_message(destination, generation->rank(), generation->size(), data, size);
    generation->send(destination, data, size);
  });
}

void abort(void* instance, uint64_t generation) {
  guarded(nullptr, generation, [&] { of(instance).generations().abort(generation); });
}

void disconnect(void* instance) {
  guarded(nullptr, 0, [&] { of(instance).generations().disconnect(); });
}

void close(void* instance) {
  guarded(nullptr, 0, [&] { delete static_cast<Instance*>(instance); });
}

void detail(void* instance, char* text, size_t size) {
  guarded(nullptr, 0, [&] {
    if (size == 0) return;
    const World world = Runtime::get().world();
    const std::string line = "messages by tcp " + of(instance).config().ip + ", data by MPI, process " +
                             std::to_string(world.rank) + " of " + std::to_string(world.size);
    const size_t length = std::min(size - 1, line.size());
    std::memcpy(text, line.data(), length);
    text[length] = 0;
  });
}

World launched_world(Clock::time_point deadline) {
  Runtime& runtime = Runtime::get();
  if (!runtime.launched()) {
    throw Failure(HVD_UNAVAILABLE, "this process was not started by a launcher of MPI");
  }
  runtime.prepare("", "");
  runtime.ready(deadline);
  return runtime.launch_world();
}

hvd_status world(int64_t timeout_ns, int32_t* rank, int32_t* size, hvd_error* error) {
  return guarded(error, 0, [&] {
    const World all = launched_world(deadline_of(timeout_ns));
    *rank = all.rank;
    *size = all.size;
  });
}

hvd_status world_broadcast(void* data, size_t size, int64_t timeout_ns, hvd_error* error) {
  return guarded(error, 0, [&] {
    const Clock::time_point deadline = deadline_of(timeout_ns);
    const World all = launched_world(deadline);
    constexpr size_t kMost = size_t{1} << 20;
    if (size > kMost || (size > 0 && data == nullptr)) {
      throw Failure(HVD_INVALID, "a broadcast of " + std::to_string(size) + " bytes: expected at most " +
                                     std::to_string(kMost) + ", not NULL");
    }
    // A copy: the call may outlive this one.
    const auto* bytes = static_cast<const uint8_t*>(data);
    const auto memory = std::make_shared<std::vector<uint8_t>>(bytes, bytes + size);
    const std::shared_ptr<Call> call = Call::start([memory, all] {
      check(MPI_Bcast(memory->data(), static_cast<int>(memory->size()), MPI_BYTE, 0, all.comm), "MPI_Bcast");
    });
    if (!call->wait(deadline)) {
      call->abandon();
      throw Failure(HVD_TIMEOUT,
                    "rank 0 of the " + std::to_string(all.size) +
                        " processes of this launch did not send what it knows before the deadline");
    }
    call->rethrow();
    std::copy(memory->begin(), memory->end(), static_cast<uint8_t*>(data));
  });
}

const char* library_version() {
#ifdef OPEN_MPI
#define HVDMPI_TEXT_(x) #x
#define HVDMPI_TEXT(x) HVDMPI_TEXT_(x)
  return "Open MPI " HVDMPI_TEXT(OMPI_MAJOR_VERSION) "." HVDMPI_TEXT(OMPI_MINOR_VERSION) "." HVDMPI_TEXT(
      OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION;
#else
  return "MPI";
#endif
}

}  // namespace
}  // namespace hvdmpi

extern "C" __attribute__((visibility("default"))) hvd_status hvd_backend_init(uint32_t abi_version,
                                                                              hvd_backend_table* table,
                                                                              hvd_error* error) {
  using namespace hvdmpi;
  return guarded(error, 0, [&] {
    if (abi_version != HVD_BACKEND_ABI_VERSION) {
      throw Failure(HVD_UNSUPPORTED, "this module speaks backend ABI version " +
                                         std::to_string(HVD_BACKEND_ABI_VERSION) + ", the library " +
                                         std::to_string(abi_version));
    }
    if (table == nullptr) throw Failure(HVD_INVALID, "the table is NULL");
    hvd_backend_table full{};
    full.struct_size = std::min(table->struct_size, sizeof(full));
    full.description.struct_size = sizeof(full.description);
    full.description.name = kName;
    full.description.version = library_version();
    full.description.memories = uint64_t{1} << HVD_MEMORY_HOST;
    for (int dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype)
      full.description.dtypes |= uint64_t{1} << dtype;
    for (int c = HVD_COLLECTIVE_BROADCAST; c <= HVD_COLLECTIVE_ALLTOALL; ++c)
      full.description.collectives |= uint64_t{1} << c;
    full.description.messages = 1;
    full.description.max_instances = 1;
    full.open = open;
    full.address = address;
    full.connect = connect;
    full.submit = submit;
    full.send_message = send_message;
    full.abort = abort;
    full.disconnect = disconnect;
    full.close = close;
    full.detail = detail;
    full.world = world;
    full.world_broadcast = world_broadcast;
    std::memcpy(table, &full, full.struct_size);
  });
}

// The module's table.
#include <gloo/config.h>

#include <charconv>

#include "modules/gloo/generation.h"
#include "modules/kit/generations.h"

namespace hvdgloo {
namespace {

using hvdkit::Generations;

#define HVDGLOO_TEXT_(x) #x
#define HVDGLOO_TEXT(x) HVDGLOO_TEXT_(x)
constexpr const char* kVersion = HVDGLOO_TEXT(GLOO_VERSION_MAJOR) "." HVDGLOO_TEXT(
    GLOO_VERSION_MINOR) "." HVDGLOO_TEXT(GLOO_VERSION_PATCH);

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

hvd_status open(const hvd_backend_host* host, const hvd_backend_option* options, size_t option_count,
                void** ret_instance, hvd_error* error) {
  return guarded(error, 0, [&] {
    if (host == nullptr || host->struct_size < sizeof(hvd_backend_host)) {
      throw Failure(HVD_INVALID, "the host's table is missing or too small");
    }
    Config config;
    std::string interface;
    std::string route;
    for (size_t i = 0; i < option_count; ++i) {
      const std::string key = options[i].key;
      const std::string value = options[i].value;
      if (key == "interface") interface = value;
      if (key == "route") route = value;
      if (key == "segment_bytes") {
        const auto [end, code] =
            std::from_chars(value.data(), value.data() + value.size(), config.segment_bytes);
        if (code != std::errc() || *end != 0 || config.segment_bytes < 64) {
          throw Failure(HVD_INVALID,
                        "option segment_bytes is '" + value + "': expected an integer of at least 64");
        }
      }
    }
    config.ip = hvdkit::local_address(interface, route);
    *ret_instance = new Instance(*host, config);
  });
}

hvd_status address(void* instance, void* data, size_t* size, hvd_error* error) {
  return guarded(error, 0, [&] {
    const auto blob = of(instance).generations().next()->blob().encode();
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
    const std::string line = "tcp " + of(instance).config().ip;
    const size_t length = std::min(size - 1, line.size());
    std::memcpy(text, line.data(), length);
    text[length] = 0;
  });
}

}  // namespace
}  // namespace hvdgloo

extern "C" __attribute__((visibility("default"))) hvd_status hvd_backend_init(uint32_t abi_version,
                                                                              hvd_backend_table* table,
                                                                              hvd_error* error) {
  using namespace hvdgloo;
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
    full.description.version = kVersion;
    full.description.memories = uint64_t{1} << HVD_MEMORY_HOST;
    for (int dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype)
      full.description.dtypes |= uint64_t{1} << dtype;
    for (int c = HVD_COLLECTIVE_BROADCAST; c <= HVD_COLLECTIVE_ALLTOALL; ++c)
      full.description.collectives |= uint64_t{1} << c;
    full.description.messages = 1;
    full.open = open;
    full.address = address;
    full.connect = connect;
    full.submit = submit;
    full.send_message = send_message;
    full.abort = abort;
    full.disconnect = disconnect;
    full.close = close;
    full.detail = detail;
    std::memcpy(table, &full, full.struct_size);
  });
}

// An instance of a loaded module: C++ clothes over hvd_backend_table, and the host table under it.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "backend/module.h"
#include "numeric/dtype.h"

namespace hvd::backend {
namespace {

/// A module is never given a time-out of 0: to it that would mean nothing.
int64_t timeout_of(Duration d) { return std::max<int64_t>(d.count(), 1); }

// What the module holds on to: the handlers with a stable address, valid until close returns.
struct Host {
  HostHandlers handlers;
  LoggerPtr logger;
  std::string name;

  // No exception may cross into the module (backend.h).
  template <class Function>
  hvd_status guarded(const char* what, hvd_error* error, Function function) noexcept {
    Status status;
    try {
      status = function();
    } catch (const Error& e) { status = e.status(); } catch (const std::exception& e) {
      try {
        status = Status(HVD_INTERNAL, fmt::format("{} of the host: {}", what, e.what()));
        logger->error("backend {}: {}", name, status.message);
      } catch (...) { status.code = HVD_INTERNAL; }
    } catch (...) { status.code = HVD_INTERNAL; }
    if (status.code != HVD_OK) status.write_to(error);
    return status.code;
  }
};

void host_log(void* context, hvd_log_level level, const char* message) {
  auto* host = static_cast<Host*>(context);
  host->guarded("log", nullptr, [&] {
    if (message != nullptr) host->logger->write(level, fmt::format("backend {}: {}", host->name, message));
    return Status();
  });
}

void host_message(void* context, uint64_t generation, int32_t source, const void* data, size_t size) {
  auto* host = static_cast<Host*>(context);
  host->guarded("message", nullptr, [&] {
    if (host->handlers.message) {
      host->handlers.message(generation, source, {static_cast<const uint8_t*>(data), size});
    }
    return Status();
  });
}

void host_failure(void* context, uint64_t generation, int32_t peer, const char* text) {
  auto* host = static_cast<Host*>(context);
  host->guarded("failure", nullptr, [&] {
    if (host->handlers.failure) host->handlers.failure(generation, peer, text != nullptr ? text : "");
    return Status();
  });
}

hvd_status host_kv_set(void* context, uint64_t generation, const char* key, const void* data, size_t size,
                       hvd_error* error) {
  auto* host = static_cast<Host*>(context);
  return host->guarded("kv_set", error, [&]() -> Status {
    if (key == nullptr || (data == nullptr && size > 0)) return {HVD_INVALID, "kv_set: key or data is NULL"};
    if (!host->handlers.kv_set) return {HVD_UNAVAILABLE, "kv_set: there is no store"};
    return host->handlers.kv_set(generation, key, {static_cast<const uint8_t*>(data), size});
  });
}

hvd_status host_kv_get(void* context, uint64_t generation, const char* key, int64_t timeout_ns, void* data,
                       size_t* size, hvd_error* error) {
  auto* host = static_cast<Host*>(context);
  return host->guarded("kv_get", error, [&]() -> Status {
    if (key == nullptr || size == nullptr || (data == nullptr && *size > 0)) {
      return {HVD_INVALID, "kv_get: key, data or size is NULL"};
    }
    constexpr Duration kLongest = std::chrono::hours(24 * 365);
    if (timeout_ns <= 0 || Duration(timeout_ns) > kLongest) {
      return {HVD_INVALID,
              fmt::format("kv_get: timeout_ns is {}: expected 1 to {}", timeout_ns, kLongest.count())};
    }
    if (!host->handlers.kv_get) return {HVD_UNAVAILABLE, "kv_get: there is no store"};
    std::vector<uint8_t> value;
    Status status = host->handlers.kv_get(generation, key, Duration(timeout_ns), &value);
    if (!status.ok()) return status;
    const size_t room = *size;
    *size = value.size();
    if (value.size() > room) {
      return {HVD_INVALID,
              fmt::format("kv_get of '{}': the value has {} bytes, the room {}", key, value.size(), room)};
    }
    if (!value.empty()) std::memcpy(data, value.data(), value.size());
    return {};
  });
}

class ModuleInstance final : public Instance {
 public:
  ModuleInstance(std::shared_ptr<Module> module, HostHandlers handlers, LoggerPtr logger)
      : module_(std::move(module)), table_(module_->table) {
    host_.handlers = std::move(handlers);
    host_.logger = std::move(logger);
    host_.name = module_->description.name;
  }

  ~ModuleInstance() override {
    if (instance_ == nullptr) return;
    table_.close(instance_);
    module_->instances.fetch_sub(1);
  }

  Status open(const std::vector<std::pair<std::string, std::string>>& module_options) {
    const int limit = table_.description.max_instances;
    if (const int open = module_->instances.fetch_add(1); limit > 0 && open >= limit) {
      module_->instances.fetch_sub(1);
      return {HVD_UNAVAILABLE,
              fmt::format("{} of its instances are open in this process and it allows {}", open, limit)};
    }
    std::vector<hvd_backend_option> options;
    for (const auto& [key, value] : module_options) options.push_back({key.c_str(), value.c_str()});
    hvd_backend_host table{};
    table.struct_size = sizeof(table);
    table.context = &host_;
    table.log = host_log;
    table.message = host_message;
    table.failure = host_failure;
    table.kv_set = host_kv_set;
    table.kv_get = host_kv_get;
    host_table_ = table;
    void* instance = nullptr;
    Status status = call("open", [&](hvd_error* error) {
      return table_.open(&host_table_, options.data(), options.size(), &instance, error);
    });
    if (status.ok() && instance == nullptr) status = Status(HVD_INTERNAL, "its open gave no instance");
    if (!status.ok()) {
      module_->instances.fetch_sub(1);
      return status;
    }
    instance_ = instance;
    return status;
  }

  const Description& description() const override { return module_->description; }

  Status offers(std::vector<Offer>* ret_offers) override {
    std::vector<uint8_t> blob(4096);
    size_t size = blob.size();
    const auto ask = [&] {
      return call("address",
                  [&](hvd_error* error) { return table_.address(instance_, blob.data(), &size, error); });
    };
    Status status = ask();
    constexpr size_t kMost = size_t{1} << 20;
    if (status.code == HVD_INVALID && size > blob.size() && size <= kMost) {
      blob.resize(size);
      status = ask();
    }
    if (!status.ok()) return status;
    if (size > blob.size()) {
      return {HVD_INTERNAL, fmt::format("backend {}: address wrote {} bytes into a room of {}", host_.name,
                                        size, blob.size())};
    }
    blob.resize(size);
    const Description& d = description();
    *ret_offers = {{d.name, "", d.memories, d.dtypes, d.collectives, std::move(blob)}};
    return status;
  }

  Status connect(uint64_t generation, int32_t rank, const std::vector<Member>& members,
                 Duration timeout) override {
    std::vector<hvd_backend_member> list;
    for (const Member& member : members) {
      const Offer* const offer = find_offer(member, host_.name);
      if (offer == nullptr) {
        Status status(HVD_UNAVAILABLE, fmt::format("rank {} (host {}) does not bring backend {}", list.size(),
                                                   member.host, host_.name));
        return status.at_rank(static_cast<int32_t>(list.size()));
      }
      list.push_back({member.worker, member.host.c_str(), offer->address.data(), offer->address.size()});
    }
    hvd_backend_group group{};
    group.struct_size = sizeof(group);
    group.generation = generation;
    group.rank = rank;
    group.size = static_cast<int32_t>(list.size());
    group.members = list.data();
    group.timeout_ns = timeout_of(timeout);
    rank_ = rank;
    Status status =
        call("connect", [&](hvd_error* error) { return table_.connect(instance_, &group, error); });
    if (!status.ok()) status.generation = generation;
    return status;
  }

  using Instance::submit;
  Status submit(const hvd_backend_op& op, std::span<const Part> parts) override {
    if (parts.size() > 1)
      return op.memory == HVD_MEMORY_HOST ? submit_packed(op, parts) : submit_parts(op, parts);
    hvd_backend_op whole = op;
    if (!parts.empty()) {
      whole.input = parts[0].input;
      whole.output = parts[0].output;
      whole.count = parts[0].count;
    }
    return hand_over(whole);
  }

  Status send_message(int32_t destination, std::span<const uint8_t> data) override {
    if (table_.send_message == nullptr) {
      return {HVD_UNSUPPORTED, fmt::format("backend {} carries no messages", host_.name)};
    }
    return call("send_message", [&](hvd_error* error) {
      return table_.send_message(instance_, destination, data.data(), data.size(), error);
    });
  }

  Status host_alloc(hvd_memory memory, size_t size, void** ret_memory) override {
    if (!has(offsetof(hvd_backend_table, host_alloc), table_.host_alloc) ||
        !has(offsetof(hvd_backend_table, host_free), table_.host_free)) {
      return Instance::host_alloc(memory, size, ret_memory);
    }
    void* data = nullptr;
    Status status = call("host_alloc",
                         [&](hvd_error* error) { return table_.host_alloc(instance_, size, &data, error); });
    if (status.ok() && data == nullptr && size > 0) {
      return {HVD_INTERNAL, fmt::format("backend {}: its host_alloc gave no memory", host_.name)};
    }
    if (status.ok()) *ret_memory = data;
    return status;
  }

  void host_free(hvd_memory, void* data) override { table_.host_free(instance_, data); }

  Status copy(hvd_memory memory, int32_t device, void* stream, bool to_device,
              std::span<const hvd_backend_copy> copies, void** ret_ticket) override {
    if (!has(offsetof(hvd_backend_table, copy), table_.copy) ||
        !has(offsetof(hvd_backend_table, copy_wait), table_.copy_wait)) {
      return Instance::copy(memory, device, stream, to_device, copies, ret_ticket);
    }
    return call("copy", [&](hvd_error* error) {
      return table_.copy(instance_, device, stream, to_device ? 1 : 0, copies.data(), copies.size(),
                         ret_ticket, error);
    });
  }

  Status copy_aside(hvd_memory memory, int32_t device, void* stream, std::span<const hvd_backend_copy> copies,
                    void** ret_ticket) override {
    if (!has(offsetof(hvd_backend_table, copy_aside), table_.copy_aside)) {
      return Instance::copy_aside(memory, device, stream, copies, ret_ticket);
    }
    return call("copy_aside", [&](hvd_error* error) {
      return table_.copy_aside(instance_, device, stream, copies.data(), copies.size(), ret_ticket, error);
    });
  }

  Status copy_wait(hvd_memory, void* ticket, Duration timeout) override {
    return call("copy_wait", [&](hvd_error* error) {
      return table_.copy_wait(instance_, ticket, timeout_of(timeout), error);
    });
  }

  void abort(uint64_t generation) override { table_.abort(instance_, generation); }
  void disconnect() override { table_.disconnect(instance_); }

  std::string detail() const override {
    if (!has(offsetof(hvd_backend_table, detail), table_.detail)) return "";
    char text[256] = {};
    table_.detail(instance_, text, sizeof(text));
    text[sizeof(text) - 1] = 0;
    return text;
  }

 private:
  /// Several tensors that travel in one buffer, because a module takes one.
  struct Pack {
    std::vector<Part> parts;
    std::unique_ptr<uint8_t[]> memory;
    size_t element = 0;
    bool unpack = true;
    void (*done)(void*, hvd_status, const hvd_error*) = nullptr;
    void* done_context = nullptr;
  };

  /// Whether the module's table, which may be older and shorter, has this function.
  template <class Function>
  bool has(size_t offset, Function* function) const {
    return table_.struct_size >= offset + sizeof(function) && function != nullptr;
  }

  Status hand_over(const hvd_backend_op& op) {
    return call("submit", [&](hvd_error* error) { return table_.submit(instance_, &op, error); });
  }

  /// Device memory: the host can't pack it, the module puts the tensors together.
  Status submit_parts(const hvd_backend_op& op, std::span<const Part> parts) {
    std::vector<hvd_backend_part> list;
    list.reserve(parts.size());
    hvd_backend_op together = op;
    together.input = nullptr;
    together.output = nullptr;
    together.count = 0;
    for (const Part& part : parts) {
      list.push_back({part.input, part.output, part.count});
      together.count += part.count;
    }
    together.parts = list.data();
    together.part_count = list.size();
    return hand_over(together);
  }

  Status submit_packed(const hvd_backend_op& op, std::span<const Part> parts) {
    auto pack = std::make_unique<Pack>();
    pack->parts.assign(parts.begin(), parts.end());
    pack->element = dtype_size(op.dtype);
    pack->done = op.done;
    pack->done_context = op.done_context;
    hvd_backend_op packed = op;
    packed.count = 0;
    for (const Part& part : parts) packed.count += part.count;
    pack->memory.reset(new (std::nothrow) uint8_t[std::max<size_t>(packed.count * pack->element, 1)]);
    if (pack->memory == nullptr) {
      return {HVD_INTERNAL, fmt::format("no memory for {} bytes in which {} tensors travel together",
                                        packed.count * pack->element, parts.size())};
    }
    const bool broadcast = op.collective == HVD_COLLECTIVE_BROADCAST;
    const bool source = !broadcast || rank_.load() == op.root;
    pack->unpack = !broadcast || !source;
    uint8_t* at = pack->memory.get();
    for (const Part& part : parts) {
      const size_t bytes = part.count * pack->element;
      if (source && bytes > 0) std::memcpy(at, broadcast ? part.output : part.input, bytes);
      at += bytes;
    }
    packed.input = packed.output = pack->memory.get();
    packed.done = on_packed_done;
    packed.done_context = pack.get();
    Status status = hand_over(packed);
    if (status.ok()) static_cast<void>(pack.release());  // on_packed_done's
    return status;
  }

  static void on_packed_done(void* context, hvd_status code, const hvd_error* error) {
    const std::unique_ptr<Pack> pack(static_cast<Pack*>(context));
    if (code == HVD_OK && pack->unpack) {
      const uint8_t* at = pack->memory.get();
      for (const Part& part : pack->parts) {
        const size_t bytes = part.count * pack->element;
        if (bytes > 0) std::memcpy(part.output, at, bytes);
        at += bytes;
      }
    }
    pack->done(pack->done_context, code, error);
  }

  template <class Function>
  Status call(const char* what, Function function) {
    hvd_error error = HVD_ERROR_INIT;
    const hvd_status code = function(&error);
    return code == HVD_OK ? Status() : failed(what, code, error);
  }

  [[gnu::noinline]] Status failed(const char* what, hvd_status code, const hvd_error& error) const try {
    Status status = Status::from(code, error);
    if (status.message.empty()) {
      status.message = fmt::format("backend {}: {} gave {}", host_.name, what, status_name(code));
    }
    if (status.backend.empty()) status.backend = host_.name;
    return status;
  } catch (const std::exception&) {
    return {code, "out of memory"};  // for its text: what the call came to must not be lost
  }

  const std::shared_ptr<Module> module_;
  const hvd_backend_table& table_;
  Host host_;
  hvd_backend_host host_table_{};
  void* instance_ = nullptr;
  std::atomic<int32_t> rank_{0};  // in the generation
};

}  // namespace

Status Instance::host_alloc(hvd_memory, size_t, void**) {
  return {HVD_UNSUPPORTED,
          fmt::format("backend {} has no memory for copies of a device's", description().name)};
}

Status Instance::copy(hvd_memory, int32_t, void*, bool, std::span<const hvd_backend_copy>, void**) {
  return {HVD_UNSUPPORTED, fmt::format("backend {} does not copy device memory", description().name)};
}

Status Instance::copy_wait(hvd_memory, void*, Duration) {
  return {HVD_UNSUPPORTED, fmt::format("backend {} does not copy device memory", description().name)};
}

Status open_instance(std::shared_ptr<Module> module,
                     const std::vector<std::pair<std::string, std::string>>& module_options,
                     HostHandlers handlers, LoggerPtr logger, std::unique_ptr<Instance>* ret_instance) {
  auto instance = std::make_unique<ModuleInstance>(std::move(module), std::move(handlers), std::move(logger));
  if (Status status = instance->open(module_options); !status.ok()) return status;
  *ret_instance = std::move(instance);
  return {};
}

}  // namespace hvd::backend

// The module's table: an instance, its current generation, and a thread that takes ended ones apart.
#include <gloo/config.h>

#include <charconv>

#include "generation.h"
#include "task.h"

namespace hvdgloo {

namespace {

#define HVDGLOO_TEXT_(x) #x
#define HVDGLOO_TEXT(x) HVDGLOO_TEXT_(x)
constexpr const char* kVersion = HVDGLOO_TEXT(GLOO_VERSION_MAJOR) "." HVDGLOO_TEXT(
    GLOO_VERSION_MINOR) "." HVDGLOO_TEXT(GLOO_VERSION_PATCH);

using GenerationPtr = std::shared_ptr<Generation>;

class Instance {
 public:
  Instance(const hvd_backend_host& host, Config config) : host_(host), config_(std::move(config)) {
    const BlockSignals block;
    reaper_ = std::thread([this] { reap(); });
  }

  ~Instance() {
    end(take(current_), false);
    end(take(next_), false);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    reaper_.join();
  }

  // The generation that is connected stays: members of it may not all be out yet.
  Blob address() {
    end(take(next_), false);
    auto generation = std::make_shared<Generation>(config_, host_);
    std::lock_guard<std::mutex> lock(mutex_);
    next_ = generation;
    return generation->blob();
  }

  void connect(const hvd_backend_group& group) {
    end(take(current_), false);
    GenerationPtr generation;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (next_ == nullptr) {
        throw Failure(HVD_INVALID, "connect to generation " + std::to_string(group.generation) +
                                       ": address was not called for it");
      }
      if (any_aborted_ && group.generation <= aborted_) {
        throw Failure(HVD_PEER_LOST, "generation " + std::to_string(group.generation) + " was given up");
      }
      next_->assign(group);
      generation = current_ = std::exchange(next_, nullptr);
    }
    try {
      generation->connect(group);
    } catch (...) {
      std::unique_lock<std::mutex> lock(mutex_);
      const bool mine = current_ == generation;  // else abort has taken it
      if (mine) current_.reset();
      lock.unlock();
      if (mine) end(std::move(generation), false);
      throw;
    }
  }

  GenerationPtr current() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (current_ == nullptr) throw Failure(HVD_PEER_LOST, "no generation is connected");
    return current_;
  }

  void abort(uint64_t number) {
    GenerationPtr generation;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      aborted_ = any_aborted_ ? std::max(aborted_, number) : number;
      any_aborted_ = true;
      if (current_ == nullptr || current_->number() != number) return;
      generation = std::move(current_);
      current_.reset();
    }
    end(std::move(generation), false);
  }

  void disconnect() { end(take(current_), true); }

  const Config& config() const { return config_; }
  const hvd_backend_host& host() const { return host_; }

 private:
  GenerationPtr take(GenerationPtr& held) {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(held, nullptr);
  }

  void end(GenerationPtr generation, bool in_peace) {
    if (generation == nullptr) return;
    if (in_peace) generation->leave();
    generation->abort();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_.push_back(std::move(generation));
    }
    changed_.notify_all();
  }

  void reap() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return closing_ || !ended_.empty(); });
      if (ended_.empty()) return;
      GenerationPtr generation = std::move(ended_.front());
      ended_.pop_front();
      lock.unlock();
      generation->teardown();
      generation.reset();
      lock.lock();
    }
  }

  const hvd_backend_host host_;
  const Config config_;
  std::mutex mutex_;
  std::condition_variable changed_;
  GenerationPtr current_;
  GenerationPtr next_;  // has its address and no number yet
  bool any_aborted_ = false;
  uint64_t aborted_ = 0;  // an abort may come before the connect that it is for
  std::deque<GenerationPtr> ended_;
  bool closing_ = false;
  std::thread reaper_;
};

// Nothing but a status may leave through the C functions.
template <class Function>
hvd_status guarded(hvd_error* error, uint64_t generation, Function function) noexcept {
  try {
    function();
    return HVD_OK;
  } catch (const Failure& failure) {
    write_error(error, failure, generation);
    return failure.status;
  } catch (const std::exception& e) {
    write_error(error, Failure(HVD_INTERNAL, e.what()), generation);
    return HVD_INTERNAL;
  }
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
    config.ip = local_address(interface, route);
    *ret_instance = new Instance(*host, config);
  });
}

hvd_status address(void* instance, void* data, size_t* size, hvd_error* error) {
  return guarded(error, 0, [&] {
    if (*size < Blob::kSize) {
      const size_t room = std::exchange(*size, Blob::kSize);
      throw Failure(HVD_INVALID,
                    "the address has " + std::to_string(*size) + " bytes, the room " + std::to_string(room));
    }
    const auto bytes = of(instance).address().encode();
    std::memcpy(data, bytes.data(), bytes.size());
    *size = bytes.size();
  });
}

hvd_status connect(void* instance, const hvd_backend_group* group, hvd_error* error) {
  return guarded(error, group->generation, [&] {
    if (group->size < 1 || group->rank < 0 || group->rank >= group->size) {
      throw Failure(HVD_INVALID,
                    "rank " + std::to_string(group->rank) + " of " + std::to_string(group->size));
    }
    of(instance).connect(*group);
  });
}

hvd_status submit(void* instance, const hvd_backend_op* op, hvd_error* error) {
  return guarded(error, 0, [&] {
    const GenerationPtr generation = of(instance).current();
    generation->submit(checked(*op, generation->rank(), generation->size()));
  });
}

hvd_status send_message(void* instance, int32_t destination, const void* data, size_t size,
                        hvd_error* error) {
  return guarded(error, 0, [&] {
    const GenerationPtr generation = of(instance).current();
    if (destination < 0 || destination >= generation->size() || destination == generation->rank()) {
      throw Failure(HVD_INVALID, "a message to rank " + std::to_string(destination) + " from rank " +
                                     std::to_string(generation->rank()) + " of " +
                                     std::to_string(generation->size()));
    }
    if (size > kMaxMessage || (data == nullptr && size > 0)) {
      throw Failure(HVD_INVALID, "a message of " + std::to_string(size) + " bytes: expected at most " +
                                     std::to_string(kMaxMessage) + ", not NULL");
    }
    generation->send(destination, data, size);
  });
}

void abort(void* instance, uint64_t generation) {
  guarded(nullptr, generation, [&] { of(instance).abort(generation); });
}

void disconnect(void* instance) {
  guarded(nullptr, 0, [&] { of(instance).disconnect(); });
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
    full.description.name = "gloo";
    full.description.version = kVersion;
    full.description.memories = uint64_t{1} << HVD_MEMORY_HOST;
    for (int dtype = HVD_UINT8; dtype <= HVD_BOOL; ++dtype) full.description.dtypes |= uint64_t{1} << dtype;
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

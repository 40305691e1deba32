// A module's table, made from one class: C calls are checked and become its methods, exceptions become
// statuses.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "modules/kit/checks.h"
#include "modules/kit/failure.h"
#include "modules/kit/options.h"

namespace hvdkit {

using Clock = std::chrono::steady_clock;

/// The description of a module that serves every collective of every dtype on one kind of memory. `name` and
/// `version` are static.
hvd_backend_description description_of(const char* name, const char* version, hvd_memory memory);

/// When a call that was given `timeout_ns` must have returned: at least 1 ms from now, at most a day.
Clock::time_point deadline_of(int64_t timeout_ns);

/// The table of a module whose instances are of class Instance. It has
///
///   static constexpr const char* kName;                   the module's name, as errors bear it
///   static hvd_backend_description describe();            throws Failure(HVD_UNAVAILABLE) if it can't serve here
///   Instance(const hvd_backend_host&, const Options&);    open; the destructor is close
///   std::vector<uint8_t> address();
///   void connect(const hvd_backend_group&);               rank and size are checked
///   void submit(const hvd_backend_op&);
///   void abort(uint64_t generation);
///   void disconnect();
///   std::string detail() const;                           one line for people
///
/// and what it serves of
///
///   void send_message(int32_t destination, const void* data, size_t size);
///   static void world(int32_t* rank, int32_t* size, Clock::time_point deadline);   these two together
///   static void world_broadcast(void* data, size_t size, Clock::time_point deadline);
///   void* host_alloc(size_t size);                                                 these four together
///   void host_free(void* memory);
///   void* copy(int32_t device, void* stream, bool to_device, const hvd_backend_copy* copies, size_t count);
///   bool copy_wait(void* ticket, int64_t timeout_ns);                              false: not done in time
///
/// Threads, blocking and bounds are those of hvd_backend_table. Each may throw: Failure says which status.
template <class Instance>
class Module {
 public:
  /// What hvd_backend_init does.
  static hvd_status init(uint32_t abi_version, hvd_backend_table* table, hvd_error* error) noexcept {
    return call(error, 0, [&] {
      if (abi_version != HVD_BACKEND_ABI_VERSION) {
        throw Failure(HVD_UNSUPPORTED, "this module speaks backend ABI version " +
                                           std::to_string(HVD_BACKEND_ABI_VERSION) + ", the library " +
                                           std::to_string(abi_version));
      }
      if (table == nullptr) throw Failure(HVD_INVALID, "the table is NULL");
      hvd_backend_table full{};
      full.struct_size = std::min(table->struct_size, sizeof(full));
      full.description = Instance::describe();
      full.open = open;
      full.address = address;
      full.connect = connect;
      full.submit = submit;
      full.abort = abort;
      full.disconnect = disconnect;
      full.close = close;
      full.detail = detail;
      if constexpr (Sends<Instance>::value) full.send_message = send_message;
      if constexpr (KnowsWorld<Instance>::value) {
        full.world = world;
        full.world_broadcast = world_broadcast;
      }
      if constexpr (Copies<Instance>::value) {
        full.host_alloc = host_alloc;
        full.host_free = host_free;
        full.copy = copy;
        full.copy_wait = copy_wait;
      }
      std::memcpy(table, &full, full.struct_size);
    });
  }

 private:
  template <class Class, class = void>
  struct Sends : std::false_type {};
  template <class Class>
  struct Sends<Class, std::void_t<decltype(&Class::send_message)>> : std::true_type {};
  template <class Class, class = void>
  struct KnowsWorld : std::false_type {};
  template <class Class>
  struct KnowsWorld<Class, std::void_t<decltype(&Class::world)>> : std::true_type {};
  template <class Class, class = void>
  struct Copies : std::false_type {};
  template <class Class>
  struct Copies<Class, std::void_t<decltype(&Class::copy)>> : std::true_type {};

  template <class Function>
  static hvd_status call(hvd_error* error, uint64_t generation, Function function) noexcept {
    return guarded(Instance::kName, error, generation, std::move(function));
  }
  static Instance& of(void* instance) { return *static_cast<Instance*>(instance); }

  static hvd_status open(const hvd_backend_host* host, const hvd_backend_option* options, size_t option_count,
                         void** ret_instance, hvd_error* error) {
    return call(error, 0, [&] {
      if (host == nullptr || host->struct_size < sizeof(hvd_backend_host)) {
        throw Failure(HVD_INVALID, "the host's table is missing or too small");
      }
      *ret_instance = std::make_unique<Instance>(*host, Options(options, option_count)).release();
    });
  }

  static hvd_status address(void* instance, void* data, size_t* size, hvd_error* error) {
    return call(error, 0, [&] {
      const std::vector<uint8_t> blob = of(instance).address();
      give_address(blob.data(), blob.size(), data, size);
    });
  }

  static hvd_status connect(void* instance, const hvd_backend_group* group, hvd_error* error) {
    return call(error, group != nullptr ? group->generation : 0, [&] {
      check_group(group);
      of(instance).connect(*group);
    });
  }

  static hvd_status submit(void* instance, const hvd_backend_op* op, hvd_error* error) {
    return call(error, 0, [&] {
      if (op == nullptr) throw Failure(HVD_INVALID, "the op is NULL");
      of(instance).submit(*op);
    });
  }

  static hvd_status send_message(void* instance, int32_t destination, const void* data, size_t size,
                                 hvd_error* error) {
    return call(error, 0, [&] { of(instance).send_message(destination, data, size); });
  }

  static void abort(void* instance, uint64_t generation) {
    call(nullptr, generation, [&] { of(instance).abort(generation); });
  }

  static void disconnect(void* instance) {
    call(nullptr, 0, [&] { of(instance).disconnect(); });
  }

  static void close(void* instance) {
    call(nullptr, 0, [&] { delete static_cast<Instance*>(instance); });
  }

  static void detail(void* instance, char* text, size_t size) {
    call(nullptr, 0, [&] { give_text(of(instance).detail(), text, size); });
  }

  static hvd_status world(int64_t timeout_ns, int32_t* rank, int32_t* size, hvd_error* error) {
    return call(error, 0, [&] { Instance::world(rank, size, deadline_of(timeout_ns)); });
  }

  static hvd_status world_broadcast(void* data, size_t size, int64_t timeout_ns, hvd_error* error) {
    return call(error, 0, [&] { Instance::world_broadcast(data, size, deadline_of(timeout_ns)); });
  }

  static hvd_status host_alloc(void* instance, size_t size, void** ret_memory, hvd_error* error) {
    return call(error, 0, [&] { *ret_memory = of(instance).host_alloc(size); });
  }

  static void host_free(void* instance, void* memory) {
    call(nullptr, 0, [&] { of(instance).host_free(memory); });
  }

  static hvd_status copy(void* instance, int32_t device, void* stream, int32_t to_device,
                         const hvd_backend_copy* copies, size_t count, void** ret_ticket, hvd_error* error) {
    return call(error, 0,
                [&] { *ret_ticket = of(instance).copy(device, stream, to_device != 0, copies, count); });
  }

  static hvd_status copy_wait(void* instance, void* ticket, int64_t timeout_ns, hvd_error* error) {
    return call(error, 0, [&] {
      if (of(instance).copy_wait(ticket, timeout_ns)) return;
      throw Failure(HVD_TIMEOUT, "copies between host and device have not ended within " +
                                     std::to_string(timeout_ns / HVD_MILLISECOND) + " ms");
    });
  }
};

}  // namespace hvdkit

/// The one symbol that a module exports. Once, outside of any namespace, in one of its sources.
#define HVDKIT_EXPORT_MODULE(Instance)                                           \
  extern "C" __attribute__((visibility("default"))) hvd_status hvd_backend_init( \
      uint32_t abi_version, hvd_backend_table* table, hvd_error* error) {        \
    return hvdkit::Module<Instance>::init(abi_version, table, error);            \
  }

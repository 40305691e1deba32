/* backend.hpp: a backend's module from one C++ class. Module fills the table of backend.h with the class's
 * methods, checks the arguments of the core's C calls, and turns exceptions into statuses. C++17 with the
 * standard library alone; nothing to link. */
#ifndef HVD_BACKEND_HPP
#define HVD_BACKEND_HPP

#include <hvd/backend.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace hvdkit {

/// A failure inside a module, thrown until it reaches the C boundary. `rank`: the rank that caused it, or -1.
struct Failure : std::runtime_error {
  Failure(hvd_status s, const std::string& text, int32_t r = -1, int64_t vendor = 0)
      : std::runtime_error(text), status(s), rank(r), vendor_code(vendor) {}
  hvd_status status;
  int32_t rank;
  int64_t vendor_code;
};

/// backend: the module's name.
inline void write_error(const char* backend, hvd_error* error, const Failure& failure,
                        uint64_t generation) noexcept {
  if (error == nullptr || error->struct_size < sizeof(size_t)) return;
  hvd_error full = HVD_ERROR_INIT;
  full.struct_size = error->struct_size;
  full.status = failure.status;
  full.rank = failure.rank;
  full.generation = generation;
  full.vendor_code = failure.vendor_code;
  std::strncpy(full.backend, backend, sizeof(full.backend) - 1);
  std::strncpy(full.message, failure.what(), sizeof(full.message) - 1);
  std::memcpy(error, &full, std::min(error->struct_size, sizeof(full)));
}

/// Runs `function` for a C function, out of which nothing but a status may come.
template <class Function>
hvd_status guarded(const char* backend, hvd_error* error, uint64_t generation, Function function) noexcept {
  try {
    function();
    return HVD_OK;
  } catch (const Failure& failure) {
    write_error(backend, error, failure, generation);
    return failure.status;
  } catch (const std::exception& e) {
    write_error(backend, error, Failure(HVD_INTERNAL, e.what()), generation);
    return HVD_INTERNAL;
  } catch (...) {
    write_error(backend, error, Failure(HVD_INTERNAL, "an exception of an unknown kind"), generation);
    return HVD_INTERNAL;
  }
}

/// The options that the core hands to `open`, by key.
class Options {
 public:
  Options() = default;
  /// Copies the list. Throws Failure(HVD_INVALID) on an entry without key or value.
  Options(const hvd_backend_option* options, size_t count) {
    if (options == nullptr && count > 0) throw Failure(HVD_INVALID, "the list of options is NULL");
    for (size_t i = 0; i < count; ++i) {
      if (options[i].key == nullptr || options[i].value == nullptr) {
        throw Failure(HVD_INVALID, "option " + std::to_string(i) + " has no key or no value");
      }
      values_[options[i].key] = options[i].value;
    }
  }

  /// The value of `key`, or `fallback` if the core gave none.
  std::string text(const std::string& key, const std::string& fallback = "") const {
    const auto found = values_.find(key);
    return found != values_.end() ? found->second : fallback;
  }
  /// 0, 1, false or true. flag and integer throw Failure(HVD_INVALID), naming the key, the value and what
  /// was expected.
  bool flag(const std::string& key, bool fallback) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return fallback;
    const std::string& value = found->second;
    if (value == "1" || value == "true") return true;
    if (value != "0" && value != "false") invalid(key, value, "0 or 1");
    return false;
  }
  uint64_t integer(const std::string& key, uint64_t fallback, uint64_t least, uint64_t most) const {
    const auto found = values_.find(key);
    if (found == values_.end()) return fallback;
    const std::string& text = found->second;
    uint64_t value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || value < least || value > most) {
      const std::string range = most == std::numeric_limits<uint64_t>::max()
                                    ? "of at least " + std::to_string(least)
                                    : "from " + std::to_string(least) + " to " + std::to_string(most);
      invalid(key, text, "an integer " + range);
    }
    return value;
  }

 private:
  [[noreturn]] static void invalid(const std::string& key, const std::string& value,
                                   const std::string& expected) {
    throw Failure(HVD_INVALID, "option " + key + " is '" + value + "': expected " + expected);
  }

  std::map<std::string, std::string> values_;
};

constexpr size_t kMaxMessage = size_t{1} << 20;  // bytes, as send_message promises

/// These throw Failure(HVD_INVALID).
inline void check_group(const hvd_backend_group* group) {
  if (group == nullptr) throw Failure(HVD_INVALID, "the group is NULL");
  if (group->size < 1 || group->rank < 0 || group->rank >= group->size) {
    throw Failure(HVD_INVALID, "rank " + std::to_string(group->rank) + " of " + std::to_string(group->size));
  }
}

inline void check_group(const hvd_backend_group& group) { check_group(&group); }

inline void check_message(int32_t destination, int rank, int size, const void* data, size_t bytes) {
  if (destination < 0 || destination >= size || destination == rank) {
    throw Failure(HVD_INVALID, "a message to rank " + std::to_string(destination) + " from rank " +
                                   std::to_string(rank) + " of " + std::to_string(size));
  }
  if (bytes > kMaxMessage || (data == nullptr && bytes > 0)) {
    throw Failure(HVD_INVALID, "a message of " + std::to_string(bytes) + " bytes: expected at most " +
                                   std::to_string(kMaxMessage) + ", not NULL");
  }
}

/// Returns the result of `address`. Sets *size also if the room is too small.
inline void give_address(const void* blob, size_t bytes, void* data, size_t* size) {
  const size_t room = std::exchange(*size, bytes);
  if (room < bytes) {
    throw Failure(HVD_INVALID,
                  "the address has " + std::to_string(bytes) + " bytes, the room " + std::to_string(room));
  }
  std::memcpy(data, blob, bytes);
}

/// Returns the result of `detail`: NUL-terminated, cut to `size`.
inline void give_text(const std::string& line, char* text, size_t size) noexcept {
  if (text == nullptr || size == 0) return;
  const size_t length = std::min(size - 1, line.size());
  std::memcpy(text, line.data(), length);
  text[length] = 0;
}

/// Bytes of one element; 0 for a dtype that no module serves.
inline size_t element_size(hvd_dtype dtype) noexcept {
  switch (dtype) {
    case HVD_DTYPE_UINT8:
    case HVD_DTYPE_INT8:
    case HVD_DTYPE_BOOL: return 1;
    case HVD_DTYPE_UINT16:
    case HVD_DTYPE_INT16:
    case HVD_DTYPE_FLOAT16:
    case HVD_DTYPE_BFLOAT16: return 2;
    case HVD_DTYPE_UINT32:
    case HVD_DTYPE_INT32:
    case HVD_DTYPE_FLOAT32: return 4;
    case HVD_DTYPE_UINT64:
    case HVD_DTYPE_INT64:
    case HVD_DTYPE_FLOAT64: return 8;
    default: return 0;
  }
}

using Clock = std::chrono::steady_clock;

/// The description of a module that serves every collective of every dtype on one kind of memory. `name` and
/// `version` are static.
inline hvd_backend_description description_of(const char* name, const char* version, hvd_memory memory) {
  hvd_backend_description d{};
  d.struct_size = sizeof(d);
  d.name = name;
  d.version = version;
  d.memories = uint64_t{1} << memory;
  for (int dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype) d.dtypes |= uint64_t{1} << dtype;
  for (int c = HVD_COLLECTIVE_BROADCAST; c <= HVD_COLLECTIVE_ALLTOALL; ++c) d.collectives |= uint64_t{1} << c;
  return d;
}

/// The deadline of a call with `timeout_ns`: at least 1 ms from now, at most a day.
inline Clock::time_point deadline_of(int64_t timeout_ns) {
  constexpr int64_t kLong = int64_t{24} * 3600 * HVD_SECOND;
  return Clock::now() + std::chrono::nanoseconds(std::clamp<int64_t>(timeout_ns, HVD_MILLISECOND, kLong));
}

/// The table of a module whose instances are of class Instance. It has
///
///   static constexpr const char* kName;                   the module's name, as errors give it
///   static hvd_backend_description describe();            throws Failure(HVD_UNAVAILABLE) if it can't serve
///   Instance(const hvd_backend_host&, const Options&);    open; the destructor is close
///   std::vector<uint8_t> address();
///   void connect(const hvd_backend_group&);               rank and size are checked
///   void submit(const hvd_backend_op&);
///   void abort(uint64_t generation);
///   void disconnect();
///   std::string detail() const;                           one line for people
///
/// and, as far as it serves them,
///
///   void send_message(int32_t destination, const void* data, size_t size);
///   static void world(int32_t* rank, int32_t* size, Clock::time_point deadline);   these two together
///   static void world_broadcast(void* data, size_t size, Clock::time_point deadline);
///   void* host_alloc(size_t size);                                                 these four together
///   void host_free(void* memory);
///   void* copy(int32_t device, void* stream, bool to_device, const hvd_backend_copy* copies, size_t count);
///   bool copy_wait(void* ticket, int64_t timeout_ns);                              false: not done in time
///   void* copy_aside(int32_t device, void* stream, const hvd_backend_copy* copies, size_t count);
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
      if constexpr (CopiesAside<Instance>::value) full.copy_aside = copy_aside;
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
  template <class Class, class = void>
  struct CopiesAside : std::false_type {};
  template <class Class>
  struct CopiesAside<Class, std::void_t<decltype(&Class::copy_aside)>> : std::true_type {};

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

  static hvd_status copy_aside(void* instance, int32_t device, void* stream, const hvd_backend_copy* copies,
                               size_t count, void** ret_ticket, hvd_error* error) {
    return call(error, 0, [&] { *ret_ticket = of(instance).copy_aside(device, stream, copies, count); });
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

/// Defines the one symbol that a module exports. Use it once, outside of any namespace, in one source.
#define HVDKIT_EXPORT_MODULE(Instance)                                           \
  extern "C" __attribute__((visibility("default"))) hvd_status hvd_backend_init( \
      uint32_t abi_version, hvd_backend_table* table, hvd_error* error) {        \
    return hvdkit::Module<Instance>::init(abi_version, table, error);            \
  }

#endif

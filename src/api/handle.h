// A handle of hvd.h is not an address but a ticket, checked at every call. It names a slot of a table,
// which counts the calls that are using the object, and the owner of the slot at the time; so a call on a
// handle that was destroyed, by whatever thread and however long ago, is an error and never an access to
// freed memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

struct hvd_agent;
struct hvd_context;
struct hvd_driver;
struct hvd_op;
struct hvd_options;
struct hvd_process_set;
struct hvd_run_loop;
struct hvd_sampler;
struct hvd_state;

namespace hvd::api {

enum class HandleKind : uint8_t {
  kOptions = 1,
  kContext,
  kProcessSet,
  kOp,
  kState,
  kSampler,
  kRunLoop,
  kDriver,
  kAgent
};

template <class T>
inline constexpr HandleKind kKindOf{};
template <>
inline constexpr HandleKind kKindOf<hvd_options> = HandleKind::kOptions;
template <>
inline constexpr HandleKind kKindOf<hvd_context> = HandleKind::kContext;
template <>
inline constexpr HandleKind kKindOf<hvd_process_set> = HandleKind::kProcessSet;
template <>
inline constexpr HandleKind kKindOf<hvd_op> = HandleKind::kOp;
template <>
inline constexpr HandleKind kKindOf<hvd_state> = HandleKind::kState;
template <>
inline constexpr HandleKind kKindOf<hvd_sampler> = HandleKind::kSampler;
template <>
inline constexpr HandleKind kKindOf<hvd_run_loop> = HandleKind::kRunLoop;
template <>
inline constexpr HandleKind kKindOf<hvd_driver> = HandleKind::kDriver;
template <>
inline constexpr HandleKind kKindOf<hvd_agent> = HandleKind::kAgent;

struct Slot;

/// One call on an object. The object lives at least as long.
class SlotUse {
 public:
  SlotUse(const SlotUse&) = delete;
  SlotUse& operator=(const SlotUse&) = delete;

  /// Is this thread within a call on the context, or on what was made from it?
  static bool within(const hvd_context* context);

 protected:
  /// Throws Error: HVD_INVALID for NULL, what is no handle, another kind, or another process's (after a
  /// fork); HVD_CLOSED for one that was destroyed. `name` is the parameter's.
  SlotUse(const void* handle, HandleKind kind, const char* name);
  ~SlotUse();
  void belongs_to(hvd_context* context) { context_ = context; }
  const std::shared_ptr<void>& object() const;

 private:
  Slot* const slot_;
  hvd_context* context_ = nullptr;
  SlotUse* const outer_;  // of the same thread
};

/// A call on a T.
template <class T>
class Use : public SlotUse {
 public:
  Use(const T* handle, const char* name)
      : SlotUse(handle, kKindOf<T>, name), object_(static_cast<T*>(object().get())) {
    if constexpr (std::is_same_v<T, hvd_context>) {
      belongs_to(object_);
    } else if constexpr (requires(T & t) { t.context; }) {
      belongs_to(object_->context.get());
    }
  }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  std::shared_ptr<T> shared() const { return std::static_pointer_cast<T>(object()); }

 private:
  T* const object_;
};

/// Closes a context that was destroyed within a call on it, now that this thread is in none any more.
void close_if_due(hvd_context* context) noexcept;

/// Makes a handle; never NULL. Throws Error(HVD_UNAVAILABLE) if there are too many.
const void* open_slot(std::shared_ptr<void> object, HandleKind kind);

/// Ends a handle: later calls on it are errors, those under way go on. The object, or nothing if the handle
/// is not this process's or was ended already. The object lives until the last call is out.
std::shared_ptr<void> close_slot(const void* handle, HandleKind kind);

template <class T>
T* make_handle(std::shared_ptr<T> object) {
  // The public type is opaque: nobody reads what is there.
  return static_cast<T*>(const_cast<void*>(open_slot(std::move(object), kKindOf<T>)));
}

template <class T>
std::shared_ptr<T> end_handle(const T* handle) {
  return std::static_pointer_cast<T>(close_slot(handle, kKindOf<T>));
}

}  // namespace hvd::api

// A C callback with its userdata, whose destroy function runs exactly once, when the last copy goes.
#pragma once

#include <memory>
#include <utility>

#include "hvd/hvd.h"

namespace hvd {

/// Owns a program's userdata.
class Userdata {
 public:
  Userdata(void* pointer, hvd_destroy_fn destroy) : pointer_(pointer), destroy_(destroy) {}
  Userdata(const Userdata&) = delete;
  Userdata& operator=(const Userdata&) = delete;
  ~Userdata() {
    if (destroy_ != nullptr) destroy_(pointer_);
  }
  void* get() const { return pointer_; }

 private:
  void* const pointer_;
  const hvd_destroy_fn destroy_;
};

template <class Function>
class Callback {
 public:
  Callback() = default;
  Callback(Function function, std::shared_ptr<Userdata> userdata)
      : function_(function), userdata_(std::move(userdata)) {}
  /// Takes charge of userdata at once: destroy runs also when this is dropped without ever being used.
  Callback(Function function, void* userdata, hvd_destroy_fn destroy)
      : Callback(function, std::make_shared<Userdata>(userdata, destroy)) {}

  explicit operator bool() const { return function_ != nullptr; }

  /// Another function that shares this one's userdata (load beside save, stop beside start).
  template <class Other>
  Callback<Other> beside(Other other) const {
    return Callback<Other>(other, userdata_);
  }

  template <class... Args>
  auto operator()(Args... args) const {
    return function_(userdata_->get(), args...);
  }

 private:
  Function function_ = nullptr;
  std::shared_ptr<Userdata> userdata_;
};

}  // namespace hvd

// A C callback with its userdata, whose destroy function runs exactly once, when the last copy goes.
#pragma once

#include <memory>

#include "hvd/hvd.h"

namespace hvd {

template <class Function>
class Callback {
 public:
  Callback() = default;
  Callback(Function function, void* userdata, hvd_destroy_fn destroy)
      : function_(function), guard_(std::make_shared<Guard>(userdata, destroy)) {}

  explicit operator bool() const { return function_ != nullptr; }

  template <class... Args>
  auto operator()(Args... args) const {
    return function_(guard_->userdata, args...);
  }

 private:
  struct Guard {
    Guard(void* u, hvd_destroy_fn d) : userdata(u), destroy(d) {}
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
    ~Guard() {
      if (destroy != nullptr) destroy(userdata);
    }
    void* const userdata;
    const hvd_destroy_fn destroy;
  };
  Function function_ = nullptr;
  std::shared_ptr<Guard> guard_;
};

}  // namespace hvd

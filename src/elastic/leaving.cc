// A worker that wants to go: how it says so, and what is left of it when it has.
#include "elastic/leaving.h"

#include <algorithm>

namespace hvd::elastic {

Status Leaving::want(Duration timeout, const std::string& why) {
  const Time by = now() + timeout;
  const std::lock_guard lock(mutex_);
  if (const auto closed = current_.closed()) return *closed;
  if (by < by_) {
    by_ = by;
    why_ = why;
  }
  if (session::Session* const to = session_) to->leaving(timeout, why);
  return {};
}

int Leaving::fd() {
  const std::lock_guard lock(mutex_);
  if (const auto closed = current_.closed()) throw Error(*closed);
  if (descriptor_ == nullptr) {
    descriptor_ = std::make_unique<LeaveDescriptor>(
        loop_, [this] { static_cast<void>(want(timeout_, "its program asked for it by a descriptor")); });
  }
  return descriptor_->fd();
}

// Asked at every call of the program: it takes no lock.
bool Leaving::has_left() const {
  const session::Session* const at = session_;
  return left_alone_ || (at != nullptr && at->left());
}

void Leaving::tell(session::Session& session) {
  const std::lock_guard lock(mutex_);
  session_ = &session;
  if (!why_.empty()) session.leaving(std::max(by_ - now(), Duration(0)), why_);
}

std::string Leaving::wish() const {
  const std::lock_guard lock(mutex_);
  return why_;
}

std::string Leaving::leave_alone() {
  const std::lock_guard lock(mutex_);
  left_alone_ = !why_.empty();
  return why_;
}

void Leaving::shut_down() {
  const std::lock_guard lock(mutex_);
  shuts_down_ = true;
  by_ = Time::max();
  why_.clear();
}

void Leaving::close() {
  const std::lock_guard lock(mutex_);
  descriptor_.reset();
}

}  // namespace hvd::elastic

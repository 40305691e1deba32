// Waits for what was given to the inner backend.
#include "local/inner.h"

#include "base/internal_status.h"

namespace hvd::local {

Status InnerOps::submit(hvd_backend_op op, std::span<const backend::Part> parts, uint64_t number,
                        Ticket** ret_ticket) {
  if (inner_ == nullptr) {
    return {HVD_INTERNAL, "all ranks share a host: there is no backend between hosts"};
  }
  used_ = true;
  Ticket& ticket = tickets_.emplace_back();
  ticket.ops_ = this;
  op.sequence = sequence_ << kNumberBits | number;
  op.done = done;
  op.done_context = &ticket;
  Status status;
  try {
    status = inner_->submit(op, parts);
  } catch (const std::exception& error) { status = internal_status(error); }
  if (!status.ok()) {
    tickets_.pop_back();
    return status;
  }
  *ret_ticket = &ticket;
  return {};
}

void InnerOps::done(void* context, hvd_status code, const hvd_error* error) {
  Ticket& ticket = *static_cast<Ticket*>(context);
  InnerOps& ops = *ticket.ops_;
  const std::lock_guard lock(ops.mutex_);
  try {
    if (code != HVD_OK) ticket.status_ = error != nullptr ? Status::from(code, *error) : Status(code, "");
  } catch (const std::exception&) { ticket.status_ = Status(code, "out of memory"); }  // none is needed
  ticket.finished_.store(true, std::memory_order_seq_cst);
  ops.group_.wake();
  ops.told_.notify_all();
}

Task InnerOps::wait(const Ticket& ticket) {
  Status status = co_await group_.wait([&] { return ticket.finished(); });
  co_return status.ok() ? ticket.outcome() : status;
}

void InnerOps::drain() {
  std::unique_lock lock(mutex_);
  told_.wait(lock, [this] {
    for (const Ticket& ticket : tickets_) {
      if (!ticket.finished()) return false;
    }
    return true;
  });
}

}  // namespace hvd::local

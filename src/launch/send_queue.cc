// Sends in order, without waiting.
#include "launch/send_queue.h"

#include <cerrno>
#include <utility>

namespace hvd::launch {
namespace {

// A timer, since a socket that has room may still refuse descriptors: a user has so many under way at most.
constexpr Duration kAgain = std::chrono::milliseconds(20);

}  // namespace

bool no_room(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS || error == ETOOMANYREFS;
}

SendQueue::SendQueue(std::string reader, std::string effect, LoggerPtr logger)
    : reader_(std::move(reader)), effect_(std::move(effect)), logger_(std::move(logger)) {}

void SendQueue::run_on(Loop& loop) {
  if (timer_ != nullptr) return;
  timer_ = std::make_unique<Loop::Timer>(loop);
  flush();
}

void SendQueue::add(const std::string& name, Send send) {
  waiting_.push_back({name, std::move(send)});
  flush();
}

bool SendQueue::forget(const std::string& name) {
  return std::erase_if(waiting_, [&](const Item& item) { return item.name == name; }) > 0;
}

void SendQueue::flush() {
  if (std::exchange(flushing_, true)) return;
  while (!waiting_.empty() && waiting_.front().send()) waiting_.pop_front();
  flushing_ = false;
  if (waiting_.empty()) {
    if (std::exchange(told_, false)) logger_->info("{} reads again", reader_);
    return;
  }
  if (!std::exchange(told_, true))
    logger_->warning("{} does not read what it is told, as if it were stopped: until it does {}", reader_,
                     effect_);
  if (timer_ != nullptr) timer_->start(kAgain, [this] { flush(); });
}

}  // namespace hvd::launch

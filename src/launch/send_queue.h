// Messages to a process beside this one over a socket that has no room for them now: that process may be
// stopped, and the loop must not wait for it.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "base/log.h"
#include "base/loop.h"

namespace hvd::launch {

/// Functions from one thread: the loop's, once there is one.
class SendQueue {
 public:
  /// Whether it is over, sent or lost; false: there is no room, it is to be called again.
  using Send = std::function<bool()>;

  /// For the log: the other process, and what follows if it reads nothing.
  SendQueue(std::string reader, std::string effect, LoggerPtr logger);
  /// Waiting messages are tried again by themselves from here on, else only before the next one.
  void run_on(Loop& loop);
  /// Before the loop ends.
  void stop() { timer_.reset(); }

  bool empty() const { return waiting_.empty(); }
  /// At once if nothing waits, else after what does.
  void add(const std::string& name, Send send);
  /// Takes back what waits under the name. False: nothing does.
  bool forget(const std::string& name);
  void flush();

 private:
  struct Item {
    std::string name;
    Send send;
  };
  const std::string reader_, effect_;
  const LoggerPtr logger_;
  std::list<Item> waiting_;
  bool flushing_ = false, told_ = false;
  std::unique_ptr<Loop::Timer> timer_;
};

/// Of a send that has failed: whether it is only that there is no room.
bool no_room(int error);

}  // namespace hvd::launch

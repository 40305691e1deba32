// One message for many receivers: encoded once, and sent to each under its own name.
#pragma once

#include <cstdint>

#include "wire/channel.h"
#include "wire/messages.h"

namespace hvd::wire {

class Circular {
 public:
  /// The envelope's worker and sequence are each receiver's.
  explicit Circular(EnvelopeT message);

  /// worker and sequence: not 0.
  void send(Channel& channel, uint64_t worker, uint64_t sequence) const;

 private:
  Bytes bytes_;
  size_t worker_ = 0, sequence_ = 0;  // where they stand
};

}  // namespace hvd::wire

// One message for many receivers: encoded once, and sent to each under its own name without another copy.
#pragma once

#include <cstdint>
#include <memory>

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
  std::shared_ptr<const Bytes> bytes_;
  size_t worker_ = 0, sequence_ = 0;  // where they stand
  size_t head_ = 0;                   // bytes up to here are each receiver's own
};

}  // namespace hvd::wire

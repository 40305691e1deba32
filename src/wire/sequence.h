// Numbers of the messages of one connection, which each end gives from 1 on: a repeated request counts once
// (contract 11).
#pragma once

#include <cstdint>
#include <string>

#include "wire/messages.h"

namespace hvd::wire {

class Sequence {
 public:
  /// Of what is sent next.
  uint64_t next() { return ++sent_; }
  void number(EnvelopeT& message) { message.sequence = next(); }
  /// Whether this is heard for the first time.
  bool hear(const EnvelopeT& message) { return hear(message.sequence); }
  bool hear(uint64_t number) {
    if (number <= heard_) return false;
    heard_ = number;
    return true;
  }

 private:
  uint64_t sent_ = 0, heard_ = 0;
};

/// Why who speaks this protocol is refused: "the worker speaks protocol 2 (library 9.9), this driver 1"; ""
/// if it is ours.
std::string foreign_protocol(const char* who, uint32_t protocol, const std::string& library);

}  // namespace hvd::wire

// Orders and reports of an agent: numbered, kept until the other end has them, and so neither lost nor done
// twice when a connection breaks. Pure.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <variant>

#include "base/status.h"
#include "wire/messages.h"

namespace hvd::agent {

using Order = std::variant<wire::AgentStartT, wire::AgentStopT, wire::AgentWatchT, wire::AgentEndT>;
using Report = std::variant<wire::AgentFailedT, wire::AgentExitedT, wire::AgentOutputT, wire::AgentGoneT>;

template <class Message>
uint64_t number_of(const Message& message) {
  return std::visit([](const auto& m) { return m.number; }, message);
}

/// Messages that are to be sent, or were and are not acknowledged yet.
template <class Message>
class Outbox {
 public:
  /// Gives the message its number and keeps it.
  const Message& push(Message message, size_t bytes = 0) {
    std::visit([this](auto& m) { m.number = ++last_; }, message);
    kept_.emplace_back(std::move(message), bytes);
    bytes_ += bytes;
    return kept_.back().first;
  }
  /// All of them are under way.
  void mark_sent() { sent_ = last_; }
  /// The other end has everything up to `received`. Throws Error(HVD_INVALID) for what was never sent.
  void acknowledge(uint64_t received) {
    if (received > sent_) {
      throw Error(HVD_INVALID,
                  fmt::format("message {} is acknowledged, and {} is the last one sent", received, sent_));
    }
    while (!kept_.empty() && number_of(kept_.front().first) <= received) {
      bytes_ -= kept_.front().second;
      kept_.pop_front();
    }
  }
  /// Takes back messages that were never sent, nor was any after them: those get the numbers that became
  /// free.
  template <class Predicate>
  void remove(Predicate unwanted) {
    last_ -= kept_.size();
    bytes_ = 0;
    for (auto& [message, bytes] : std::exchange(kept_, {})) {
      if (!unwanted(message)) push(std::move(message), bytes);
    }
  }
  /// For another receiver: nothing was sent, and numbers go on after `from`, the last one that it has.
  void restart(uint64_t from = 0) {
    sent_ = from;
    last_ = from + kept_.size();
    remove([](const Message&) { return false; });
  }
  void clear() {
    kept_.clear();
    bytes_ = 0;
    last_ = sent_ = 0;
  }
  template <class Function>
  void for_each(Function fn) const {
    for (const auto& [message, bytes] : kept_) fn(message);
  }
  bool empty() const { return kept_.empty(); }
  size_t bytes() const { return bytes_; }
  size_t size() const { return kept_.size(); }
  uint64_t last() const { return last_; }
  uint64_t acknowledged() const { return last_ - kept_.size(); }

 private:
  std::deque<std::pair<Message, size_t>> kept_;
  size_t bytes_ = 0;
  uint64_t last_ = 0, sent_ = 0;
};

/// Takes a number that came. True if the message is new, false if it came before. Throws Error(HVD_INVALID)
/// if one between is missing.
class Inbox {
 public:
  bool take(uint64_t number) {
    if (number == 0 || number > received_ + 1) {
      throw Error(HVD_INVALID, fmt::format("message {} follows message {}", number, received_));
    }
    if (number <= received_) return false;
    received_ = number;
    return true;
  }
  uint64_t received() const { return received_; }
  /// The next one is `from` + 1.
  void restart(uint64_t from = 0) { received_ = from; }

 private:
  uint64_t received_ = 0;
};

}  // namespace hvd::agent

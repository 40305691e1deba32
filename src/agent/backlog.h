// An agent's reports while nobody takes them: beyond a bound, workers' output goes to a spool, in order with
// all else. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "agent/numbered.h"

namespace hvd::agent {

/// Bytes that are kept outside of memory, first in, first out.
class Spool {
 public:
  virtual ~Spool() = default;
  /// All of them or none: false, and why() tells.
  virtual bool push(std::string_view bytes) = 0;
  /// The oldest `size` ones; false if they can't be read, and why() tells: they are given up.
  virtual bool pop(size_t size, std::string* ret_bytes) = 0;
  virtual void clear() = 0;
  virtual std::string why() const = 0;
  virtual std::string place() const = 0;  // for people
};

class Backlog {
 public:
  /// Without a spool it is full from the first output on.
  explicit Backlog(std::unique_ptr<Spool> spool) : spool_(std::move(spool)) {}

  void push(Report report);
  /// The oldest one.
  std::optional<Report> pop();
  void clear();

  bool empty() const { return items_.empty(); }
  /// Reports that are kept in memory, which all but output are, by age.
  template <class Function>
  void for_each_kept(Function fn) const {
    for (const auto& item : items_) {
      if (const auto* report = std::get_if<Report>(&item)) fn(*report);
    }
  }
  /// The spool takes no more: what comes now is kept in memory, and nothing should come.
  bool full() const { return full_; }
  uint64_t bytes() const { return bytes_; }  // of output that wait
  uint64_t lost() const { return lost_; }    // of output that the spool could not give back
  std::string why() const { return spool_ ? spool_->why() : "there is no spool (agent_spool_bytes is 0)"; }
  std::string place() const { return spool_ ? spool_->place() : ""; }

 private:
  bool spool(const wire::AgentOutputT& output);

  using Run = uint64_t;  // bytes of the spool: reports of output in a row
  const std::unique_ptr<Spool> spool_;
  std::deque<std::variant<Run, Report>> items_;
  bool full_ = false;
  uint64_t bytes_ = 0, lost_ = 0;
};

}  // namespace hvd::agent

// A spool for tests of decisions: so many bytes and no more.
#pragma once

#include <string>

#include "agent/backlog.h"

namespace hvd::agent {

class MemorySpool final : public Spool {
 public:
  explicit MemorySpool(size_t limit) : limit_(limit) {}
  bool push(std::string_view bytes) override {
    if (bytes_.size() + bytes.size() > limit_) return false;
    bytes_ += bytes;
    return true;
  }
  bool pop(size_t size, std::string* ret_bytes) override {
    if (broken || bytes_.size() < size) return false;
    *ret_bytes = bytes_.substr(0, size);
    bytes_.erase(0, size);
    return true;
  }
  void clear() override { bytes_.clear(); }
  std::string why() const override { return broken ? "it broke" : "it is full"; }
  std::string place() const override { return "a test"; }

  bool broken = false;

 private:
  const size_t limit_;
  std::string bytes_;
};

}  // namespace hvd::agent

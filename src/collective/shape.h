// Extents of a tensor, in place: a group of many tensors costs no memory for each.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "base/status.h"
#include "hvd/hvd.h"

namespace hvd::collective {

class Shape {
 public:
  Shape() = default;
  // Each throws Error(HVD_INVALID) if these are more than HVD_MAX_DIMS.
  Shape(std::initializer_list<int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  Shape(const std::vector<int64_t>& extents)  // NOLINT(google-explicit-constructor): as good as a list
      : Shape(std::span(extents)) {}
  explicit Shape(std::span<const int64_t> extents) : size_(extents.size()) {
    if (size_ > HVD_MAX_DIMS) {
      throw Error(HVD_INVALID,
                  fmt::format("a shape of {} dimensions: expected at most {}", size_, HVD_MAX_DIMS));
    }
    std::copy(extents.begin(), extents.end(), extents_.begin());
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const int64_t* data() const { return extents_.data(); }
  const int64_t* begin() const { return data(); }
  const int64_t* end() const { return data() + size_; }
  int64_t operator[](size_t dimension) const { return extents_[dimension]; }
  int64_t& operator[](size_t dimension) { return extents_[dimension]; }
  std::vector<int64_t> vector() const { return {begin(), end()}; }

  friend bool operator==(const Shape& a, const Shape& b) { return std::ranges::equal(a, b); }
  friend bool operator==(const Shape& a, const std::vector<int64_t>& b) { return std::ranges::equal(a, b); }

 private:
  size_t size_ = 0;
  std::array<int64_t, HVD_MAX_DIMS> extents_{};
};

}  // namespace hvd::collective

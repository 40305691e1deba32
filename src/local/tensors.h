// Several tensors as one array.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/stream_copy.h"

namespace hvd::local {

/// Elements are numbered through all parts, as if these lay one after the other.
class Tensors {
 public:
  Tensors(std::span<const backend::Part> parts, size_t element) : element_(element) {
    parts_.reserve(parts.size());
    for (const backend::Part& part : parts) {
      if (part.count == 0) continue;
      parts_.push_back({static_cast<const uint8_t*>(part.input), static_cast<uint8_t*>(part.output), count_});
      count_ += part.count;
    }
  }

  size_t count() const { return count_; }
  size_t element() const { return element_; }
  size_t bytes() const { return count_ * element_; }

  /// visit(input, output, offset, n) for each run of n elements of one part within [first, first + count);
  /// offset: elements since first.
  template <class Visit>
  void visit(size_t first, size_t count, Visit&& visit) const {
    if (count == 0) return;
    auto part =
        std::upper_bound(parts_.begin(), parts_.end(), first,
                         [](size_t position, const Placed& placed) { return position < placed.first; }) -
        1;
    for (size_t offset = 0; offset < count; ++part) {
      const size_t end = part + 1 == parts_.end() ? count_ : (part + 1)->first;
      const size_t within = first + offset - part->first;
      const size_t n = std::min(count - offset, end - first - offset);
      visit(part->input + within * element_, part->output + within * element_, offset, n);
      offset += n;
    }
  }

  /// Inputs into a buffer. fetch: from memory, rather than from the caches.
  void gather(size_t first, size_t count, uint8_t* to, bool fetch = false) const {
    visit(first, count, [&](const uint8_t* input, uint8_t*, size_t offset, size_t n) {
      copy_from(to + offset * element_, input, n * element_, fetch);
    });
  }

  /// A buffer into the outputs. stream: past the caches.
  void scatter(size_t first, size_t count, const uint8_t* from, bool stream = false) const {
    visit(first, count, [&](const uint8_t*, uint8_t* output, size_t offset, size_t n) {
      copy_to(output, from + offset * element_, n * element_, stream);
    });
  }

  /// Inputs into the outputs, where they are not the same.
  void copy() const {
    visit(0, count_, [&](const uint8_t* input, uint8_t* output, size_t, size_t n) {
      if (input != output) std::memmove(output, input, n * element_);
    });
  }

  /// The range as parts, working in place on the outputs or from inputs to outputs.
  std::vector<backend::Part> parts(size_t first, size_t count, bool in_place) const {
    std::vector<backend::Part> result;
    visit(first, count, [&](const uint8_t* input, uint8_t* output, size_t, size_t n) {
      result.push_back({in_place ? output : input, output, n});
    });
    return result;
  }

 private:
  struct Placed {
    const uint8_t* input;
    uint8_t* output;
    size_t first;
  };
  std::vector<Placed> parts_;
  size_t element_;
  size_t count_ = 0;
};

}  // namespace hvd::local

// Which operations that all ranks have called start now, and which travel as one: rank 0's decision. Pure.
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "collective/signature.h"

namespace hvd::collective {

class Fusion {
 public:
  struct Item {
    uint64_t id = 0;
    SignaturePtr call;
    std::vector<int32_t> participants;
    std::vector<uint32_t> places;  // device memory: of each participant's call
    uint64_t bytes = 0;
    bool mine = true;   // rank 0 takes part and will say when it is done
    bool alone = true;  // never together with others
  };
  using Batch = std::vector<uint64_t>;  // ids, in their order within the batch

  /// threshold: bytes of a batch of several at most. While `window` of rank 0's operations are under way,
  /// those that are ready are collected.
  explicit Fusion(uint64_t threshold, size_t window = 2) : threshold_(threshold), window_(window) {}

  void add(Item item);
  /// Rank 0 has begun one that was not chosen here.
  void started() { ++under_way_; }
  /// One of rank 0's batches is done.
  void finished() {
    if (under_way_ > 0) --under_way_;
  }
  /// The batch to start now, of one or more items; empty if there is none. Call until then.
  Batch next();
  size_t waiting() const { return ready_.size(); }

  /// May these two travel as one, as far as their signatures say?
  static bool together(const Item& a, const Item& b);

 private:
  const uint64_t threshold_;
  const size_t window_;
  size_t under_way_ = 0;
  std::list<Item> ready_;  // higher priority first, then in the order of arrival
};

}  // namespace hvd::collective

// Chooses the batch that runs next from the operations that are ready.
#include "collective/fusion.h"

#include <algorithm>
#include <bit>

#include "collective/kinds/kind.h"

namespace hvd::collective {

namespace {
bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }
}  // namespace

void Fusion::add(Item item) {
  const auto later = std::find_if(ready_.begin(), ready_.end(), [&](const Item& other) {
    return other.call->priority < item.call->priority;
  });
  ready_.insert(later, std::move(item));
}

bool Fusion::together(const Item& a, const Item& b) {
  if (a.alone || b.alone || a.call->kind != b.call->kind || a.participants != b.participants) return false;
  if (a.call->memory != b.call->memory || a.places != b.places) return false;
  const Row& row = row_of(a.call->kind);
  if (row.parts == nullptr || (row.rooted && a.call->root != b.call->root)) return false;
  if (!row.reduces) return true;  // as bytes
  if (a.call->specs.empty() || b.call->specs.empty()) return false;
  return a.call->specs[0].dtype == b.call->specs[0].dtype && a.call->reduction == b.call->reduction &&
         same_bits(a.call->prescale, b.call->prescale) && same_bits(a.call->postscale, b.call->postscale);
}

Fusion::Batch Fusion::next() {
  const auto first = std::find_if(ready_.begin(), ready_.end(), [&](const Item& item) {
    return !item.mine || under_way_ < window_;  // what does not concern rank 0 does not wait for it
  });
  if (first == ready_.end()) return {};
  const Item head = std::move(*first);
  auto it = ready_.erase(first);
  if (head.mine) ++under_way_;
  Batch batch{head.id};
  if (head.alone) return batch;
  uint64_t bytes = head.bytes;
  for (it = ready_.begin(); it != ready_.end();) {
    if (it->bytes <= threshold_ && bytes <= threshold_ - it->bytes && together(head, *it)) {
      bytes += it->bytes;
      batch.push_back(it->id);
      it = ready_.erase(it);
    } else {
      ++it;
    }
  }
  return batch;
}

}  // namespace hvd::collective

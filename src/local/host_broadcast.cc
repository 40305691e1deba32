// Broadcast within a host, through the rings of shared memory.
#include <algorithm>

#include "local/host_collectives.h"

namespace hvd::local {
namespace {

// Little is not worth cutting; in between, readers begin while the root still writes. A ring of the largest
// blocks stays in a core's second cache beside what passes through it. Few readers of much that take turns
// on a core hand it over less often with whole segments.
constexpr size_t kLeastBlock = size_t{32} << 10, kMostBlock = size_t{128} << 10;
constexpr size_t kMuch = size_t{32} << 20;
constexpr int32_t kFew = 4;  // ranks
static_assert(kMostBlock <= kSegmentBytes);

size_t block_bytes(size_t bytes, int32_t members) {
  if (bytes >= kMuch && members <= kFew) return kSegmentBytes;
  return std::clamp(bytes / 8, kLeastBlock, kMostBlock);
}

}  // namespace

Task host_broadcast(Team& team, const Tensors& tensors, int32_t root) {
  const size_t each = std::max<size_t>(1, block_bytes(tensors.bytes(), team.size()) / tensors.element());
  const Blocks blocks{tensors.count(), each};
  HostGroup& group = team.group;
  const bool is_root = team.me == root;
  const bool stream = streams(team, tensors.bytes());
  if (is_root && team.size() == 1) co_return Status();
  const int32_t source = team.member(root);
  for (size_t block = 0; block < blocks.count(); ++block) {
    if (is_root) {
      const size_t segment = team.segment(block);
      if (Status status = co_await await_release(group, segment); !status.ok()) co_return status;
      tensors.gather(blocks.first(block), blocks.length(block), group.segment(segment), stream);
      group.put(segment, team.stamp(block), team.others);
    } else {
      std::optional<Found> found;
      if (Status status = co_await await_block(team, source, block, found); !status.ok()) co_return status;
      tensors.scatter(blocks.first(block), blocks.length(block), found->data, stream);
      release(team, source, *found, block);
    }
  }
  co_return Status();
}

}  // namespace hvd::local

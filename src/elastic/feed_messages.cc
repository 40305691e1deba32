// Checks each item before room is made for any.
#include "elastic/feed_messages.h"

#include <memory>
#include <utility>

#include "wire/messages.h"

namespace hvd::elastic {
namespace {

// Of a commit's digests, 16 bytes for each MiB: what does not fit is not fed.
constexpr size_t kMostDigests = 512 << 10;

}  // namespace

wire::FeedCommitT write_commit(const state::FeedCommit& commit) {
  wire::FeedCommitT told;
  told.revision = commit.revision;
  told.process = commit.reach.process;
  told.mark = commit.reach.mark;
  told.token = std::make_unique<wire::Digest>(commit.reach.token.low, commit.reach.token.high);
  size_t digests = 0;
  for (const state::FeedItem& item : commit.items) {
    digests += item.digests.size() + 16;  // and its key
    if (digests > kMostDigests) break;
    auto one = std::make_unique<wire::FeedItemT>();
    one->key = item.key;
    one->spec = std::make_unique<wire::Digest>(item.spec.low, item.spec.high);
    one->bytes = item.bytes;
    one->address = item.address;
    for (const Digest& digest : item.digests) one->digests.emplace_back(digest.low, digest.high);
    told.items.push_back(std::move(one));
  }
  return told;
}

state::FeedCommit read_commit(const wire::FeedCommitT& told) {
  state::FeedCommit commit;
  commit.revision = told.revision;
  commit.reach = {told.process, told.mark, wire::to_digest(told.token.get())};
  for (const auto& one : told.items) {
    if (one == nullptr) throw Error(HVD_INVALID, "a commit with an item that is missing");
    state::FeedItem& item = commit.items.emplace_back();
    item.key = one->key;
    item.spec = wire::to_digest(one->spec.get());
    item.bytes = one->bytes;
    item.address = one->address;
    for (const wire::Digest& digest : one->digests) item.digests.push_back(wire::to_digest(&digest));
  }
  state::check(commit);
  return commit;
}

}  // namespace hvd::elastic

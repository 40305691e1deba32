// Reads the last commit under a lock that a commit holds while it writes, and keeps what a worker was fed.
#include "state/feed.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "state/impl.h"
#include "state/pages.h"

namespace hvd::state {
namespace {

bool is_fed(const Variable& variable) {
  if (!variable.committed) return false;  // its first copy is made while others look
  const Pieces& pieces = variable.copy.pieces;
  const size_t bytes = variable.committed_bytes().size();
  return variable.spec.kind != VariableKind::kShard && !variable.on_device() && bytes > 0 &&
         pieces.digests.size() == pieces_of(bytes) &&
         std::all_of(pieces.marks.begin(), pieces.marks.end(),
                     [](uint8_t mark) { return (mark & Pieces::kKnown) != 0; });
}

}  // namespace

void check(const FeedCommit& commit) {
  const uint64_t most = memory_of_machine() / 2;
  uint64_t total = 0;
  std::set<std::string_view> keys;
  for (const FeedItem& item : commit.items) {
    const std::string key = printable(item.key, 80);
    if (!keys.insert(item.key).second)
      throw Error(HVD_INVALID, fmt::format("a commit that has key '{}' twice", key));
    if (item.bytes == 0 || item.bytes > most - total)
      throw Error(HVD_INVALID, fmt::format("a commit with {} bytes of key '{}' beside {} of others: expected "
                                           "1 to {} in all, half of this machine's memory",
                                           item.bytes, key, total, most));
    total += item.bytes;
    if (item.digests.size() != pieces_of(item.bytes))
      throw Error(HVD_INVALID,
                  fmt::format("a commit with {} digests of the {} bytes of key '{}': expected {}",
                              item.digests.size(), item.bytes, key, pieces_of(item.bytes)));
  }
}

bool FeedSource::revision(uint64_t* ret_revision) const {
  const std::lock_guard lock(mutex_);
  *ret_revision = revision_;
  return variables_ != nullptr;
}

bool FeedSource::commit(FeedCommit* ret_commit) const {
  FeedCommit commit;
  if (readable_) commit.reach = own_reach();
  const std::lock_guard lock(mutex_);
  if (variables_ == nullptr) return false;
  commit.revision = revision_;
  for (const auto& [key, variable] : *variables_) {
    if (!is_fed(variable)) continue;
    const std::span<const uint8_t> bytes = variable.committed_bytes();
    commit.items.push_back({key, variable.spec_digest, bytes.size(), reinterpret_cast<uint64_t>(bytes.data()),
                            variable.copy.pieces.digests});
  }
  *ret_commit = std::move(commit);
  return true;
}

bool FeedSource::piece(const std::string& key, size_t index, std::vector<uint8_t>* ret_bytes) const {
  const std::lock_guard lock(mutex_);
  if (variables_ == nullptr) return false;
  const auto found = variables_->find(key);
  if (found == variables_->end() || !is_fed(found->second)) return false;
  const std::span<const uint8_t> bytes = found->second.committed_bytes();
  if (index >= pieces_of(bytes.size())) return false;
  const std::span<const uint8_t> some =
      bytes.subspan(index * kPiece).first(std::min(kPiece, bytes.size() - index * kPiece));
  ret_bytes->assign(some.begin(), some.end());
  return true;
}

void FeedSource::watch(const void* watcher, std::function<void()> changed) {
  const std::lock_guard lock(mutex_);
  watchers_[watcher] = std::move(changed);
}

void FeedSource::unwatch(const void* watcher) {
  const std::lock_guard lock(mutex_);
  watchers_.erase(watcher);
}

void FeedSource::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  variables_ = nullptr;
}

FeedPause::FeedPause(State::Impl& state) : state_(state) {
  FeedSource& feed = *state.feed;
  const std::lock_guard lock(feed.mutex_);
  ++feed.pauses_;
  feed.variables_ = nullptr;
}

FeedPause::~FeedPause() {
  uint64_t revision = 0;
  bool whole = false;
  {
    const std::lock_guard lock(state_.mutex);
    revision = state_.summary.revision;
    // Before its first sync a state holds what it has found, which is nobody's.
    whole = state_.has_commit && state_.summary.has_state;
  }
  FeedSource& feed = *state_.feed;
  const std::lock_guard lock(feed.mutex_);
  feed.revision_ = revision;
  if (--feed.pauses_ != 0 || !whole || feed.closed_) return;
  feed.variables_ = &state_.variables;
  for (const auto& [watcher, changed] : feed.watchers_) changed();
}

void FeedCache::fit(const FeedCommit& commit) {
  // Without memory it is left empty: who has half of an item has none.
  std::map<std::string, Item> items, before = std::exchange(items_, {});
  std::vector<std::span<uint8_t>> fresh;
  for (const FeedItem& wanted : commit.items) {
    Item item;
    if (const auto found = before.find(wanted.key);
        found != before.end() && found->second.spec == wanted.spec && found->second.bytes == wanted.bytes) {
      item = std::move(found->second);
    } else {
      item.spec = wanted.spec;
      item.bytes = wanted.bytes;
      item.memory = Memory(wanted.bytes);
      item.pieces.fit(wanted.bytes);
      fresh.emplace_back(item.memory.data(), item.bytes);
    }
    items.emplace(wanted.key, std::move(item));
  }
  items_ = std::move(items);
  // In this thread, whose time nobody waits for.
  for (const std::span<uint8_t> range : fresh) get_pages({range}, false);
}

std::vector<FeedCache::Piece> FeedCache::lacking(const FeedCommit& commit) const {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < commit.items.size(); ++i) {
    const FeedItem& wanted = commit.items[i];
    const Pieces& held = items_.at(wanted.key).pieces;
    for (size_t index = 0; index < wanted.digests.size(); ++index) {
      if ((held.marks[index] & Pieces::kKnown) != 0 && held.digests[index] == wanted.digests[index]) continue;
      pieces.push_back({i, index, std::min<size_t>(kPiece, wanted.bytes - index * kPiece)});
    }
  }
  return pieces;
}

uint64_t FeedCache::bytes() const {
  uint64_t bytes = 0;
  for (const auto& [key, item] : items_) {
    for (size_t index = 0; index < item.pieces.marks.size(); ++index) {
      if ((item.pieces.marks[index] & Pieces::kKnown) == 0) continue;
      bytes += std::min(kPiece, item.bytes - index * kPiece);
    }
  }
  return bytes;
}

uint8_t* FeedCache::room(const FeedCommit& commit, const Piece& piece) {
  Item& item = items_.at(commit.items[piece.item].key);
  item.pieces.marks[piece.index] = 0;
  return item.memory.data() + piece.index * kPiece;
}

void FeedCache::arrived(const FeedCommit& commit, const Piece& piece) {
  Item& item = items_.at(commit.items[piece.item].key);
  item.pieces.digests[piece.index] = digest(item.memory.data() + piece.index * kPiece, piece.size);
  item.pieces.marks[piece.index] = Pieces::kKnown;
}

uint64_t bytes_of(const std::vector<FeedCache::Piece>& pieces) {
  uint64_t bytes = 0;
  for (const FeedCache::Piece& piece : pieces) bytes += piece.size;
  return bytes;
}

bool FeedProgress::may_join(uint64_t lacking, uint64_t moved, Duration took) {
  if (joined_) return true;
  if (moved > 0) {
    total_ += moved;
    spent_ += took;
  }
  if (lacking == 0) return joined_ = true;
  if (total_ == 0 || spent_ <= Duration(0)) return false;
  if (to_seconds(spent_) * static_cast<double>(lacking) <= to_seconds(pause_) * static_cast<double>(total_)) {
    return joined_ = true;
  }
  if (moved == 0) return false;
  // A tenth less is no step towards it.
  const bool closer = lacking < least_ - least_ / 10;
  least_ = std::min(least_, lacking);
  vain_ = closer ? 0 : vain_ + 1;
  return joined_ = vain_ >= kPatience;
}

}  // namespace hvd::state

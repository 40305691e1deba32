// The ranks of a sync tell each other what they have, and its digests.
#include "state/sync.h"

#include <fmt/format.h>

#include <cstring>

#include "state/pages.h"

namespace hvd::state {

using collective::Engine;

namespace {

Status at_rank(size_t rank, hvd_status code, std::string message) {
  Status status(code, std::move(message));
  status.rank = static_cast<int32_t>(rank);
  return status;
}

}  // namespace

Status Sync::echoed(const char* what, const void* said, const void* got, size_t size) {
  if (size == 0 || std::memcmp(said, got, size) == 0) return {};
  return {HVD_INTERNAL,
          fmt::format("state sync: the {} that were handed round for this rank are not its own", what)};
}

Status Sync::exchange_heads(const Status& local) {
  for (const Variable* variable : variables_) encode(variable->spec, &specs_);
  Head mine;
  {
    std::lock_guard lock(state_.mutex);
    mine.flags = (state_.summary.has_state ? Head::kHasState : 0) | (local.ok() ? 0 : Head::kFailed);
    mine.revision = state_.summary.revision;
    mine.digest = state_.summary.digest;
  }
  mine.spec = digest(specs_.data(), specs_.size());
  mine.spec_bytes = specs_.size();

  std::vector<uint8_t> all;
  if (Status status = gather("hvd.sync.head", &mine, sizeof(mine), &all); !status.ok()) return status;
  if (all.size() != size_ * sizeof(Head)) {
    return {HVD_INTERNAL, fmt::format("state sync: {} bytes of heads from {} ranks: expected {}", all.size(),
                                      size_, size_ * sizeof(Head))};
  }
  heads_.resize(size_);
  std::memcpy(heads_.data(), all.data(), all.size());
  if (!local.ok()) return local;
  if (Status status = echoed("heads", &mine, &heads_[static_cast<size_t>(rank_)], sizeof(mine)); !status.ok())
    return status;
  std::vector<Summary> summaries;
  for (size_t rank = 0; rank < size_; ++rank) {
    const Head& head = heads_[rank];
    if ((head.flags & Head::kFailed) != 0) {
      // That rank leaves with its own error: to the others it is lost.
      return at_rank(rank, HVD_PEER_LOST, fmt::format("state sync: rank {} could not save its state", rank));
    }
    summaries.push_back({(head.flags & Head::kHasState) != 0, head.revision, head.digest});
  }
  summaries = believed(std::move(summaries), known_);
  result.root = choose_root(summaries);
  fresh_ = !summaries[static_cast<size_t>(result.root)].has_state;
  in_place_ = !fresh_ && (mine.flags & Head::kHasState) == 0;
  result.revision = summaries[static_cast<size_t>(result.root)].revision;
  for (size_t rank = 0; rank < size_; ++rank) {
    if (heads_[rank].spec != heads_[static_cast<size_t>(result.root)].spec) return name_mismatch(rank);
  }
  return {};
}

/// Root and `other` registered different things: tells all ranks the first key that differs (contract 9).
Status Sync::name_mismatch(size_t other) {
  const auto root = static_cast<size_t>(result.root);
  const auto length = [&](size_t rank) -> uint64_t {  // of each rank's part; nobody's is empty
    return rank == root || rank == other ? std::max<uint64_t>(heads_[rank].spec_bytes, 1) : 1;
  };
  specs_.resize(std::max<size_t>(specs_.size(), 1));
  const size_t mine = static_cast<size_t>(length(static_cast<size_t>(rank_)));
  std::vector<uint8_t> all;
  if (Status status = gather("hvd.sync.spec", specs_.data(), mine, &all); !status.ok()) return status;

  std::span<const uint8_t> of_root, of_other;
  size_t at = 0;
  for (size_t rank = 0; rank < size_; ++rank) {
    if (length(rank) > all.size() - at || heads_[rank].spec_bytes > all.size()) break;
    const std::span<const uint8_t> text(all.data() + at, std::min(heads_[rank].spec_bytes, length(rank)));
    if (rank == root) of_root = text;
    if (rank == other) of_other = text;
    at += length(rank);
  }
  return at_rank(
      other, HVD_MISMATCH,
      fmt::format("state differs between ranks: {}; expected the same keys, kinds, dtypes and shapes on "
                  "every rank",
                  difference(of_root, root, of_other, other)));
}

Status Sync::exchange_versions() {
  std::vector<Version> mine;
  for (Variable* variable : variables_)
    mine.push_back({variable->digest, variable->committed_bytes().size()});
  std::vector<uint8_t> all;
  const size_t row = mine.size() * sizeof(Version);
  if (Status status = gather("hvd.sync.digests", mine.data(), row, &all); !status.ok()) return status;
  if (all.size() != size_ * row) {
    return {HVD_INTERNAL, fmt::format("state sync: {} bytes of digests from {} ranks: expected {}",
                                      all.size(), size_, size_ * row)};
  }
  if (Status status = echoed("digests", mine.data(), all.data() + static_cast<size_t>(rank_) * row, row);
      !status.ok()) {
    return status;
  }
  versions_.assign(size_, std::vector<Version>(mine.size()));
  std::vector<Digest> digests;
  for (size_t rank = 0; rank < size_; ++rank) {
    std::memcpy(versions_[rank].data(), all.data() + rank * row, row);
    for (size_t i = 0; i < mine.size(); ++i) {
      if (!variables_[i]->is_object() && versions_[rank][i].size != variables_[i]->bytes) {
        return at_rank(
            rank, HVD_INTERNAL,
            fmt::format("state sync: key '{}' has {} bytes on rank {}: expected {}", variables_[i]->spec.key,
                        versions_[rank][i].size, rank, variables_[i]->bytes));
      }
      // The root's word is what room is made for.
      if (versions_[rank][i].size > memory_of_machine()) {
        return at_rank(
            rank, HVD_INTERNAL,
            fmt::format("state sync: key '{}' has {} bytes on rank {}: expected at most the {} of "
                        "this machine's memory",
                        variables_[i]->spec.key, versions_[rank][i].size, rank, memory_of_machine()));
      }
    }
  }
  for (const Version& version : wanted()) digests.push_back(version.digest);
  if (state_.total(digests) != heads_[static_cast<size_t>(result.root)].digest) {
    return {HVD_INTERNAL,
            fmt::format("state sync: the digests of rank {} are not those of its commit", result.root)};
  }
  return {};
}

Status Sync::finish_reading(bool failed) {
  if (std::none_of(plan_.begin(), plan_.end(), [](const Transfer& t) { return t.direct; })) return {};
  const uint8_t word = failed ? 1 : 0;
  std::vector<uint8_t> all;
  return gather("hvd.sync.read", &word, sizeof(word), &all);
}

Status Sync::run(const Status& local) {
  const auto failed = [](const Status& status) { return !status.ok(); };
  Status status = exchange_heads(local);
  if (failed(status)) return status;
  const Head& root = heads_[static_cast<size_t>(result.root)];
  if (failed(status = state_.promote(result.revision))) return status;
  const bool differ =
      std::any_of(heads_.begin(), heads_.end(), [&](const Head& h) { return h.digest != root.digest; });
  if (differ) {
    if (failed(status = exchange_versions()) || failed(status = exchange_pieces())) return status;
    plan_ = plan_transfers(holdings_);
    if (failed(status = prepare())) return status;
    status = transfer();
    if (!failed(status)) status = verify();
    const Status read = finish_reading(failed(status));
    // A source that is lost while it is read has freed its commit: what came of it is not to blame.
    if (!failed(status) || (status.code == HVD_INTERNAL && read.code == HVD_PEER_LOST)) status = read;
    if (failed(status) || failed(status = apply())) return status;
    deadline_ = now() + timeout_;  // others may be in their load callbacks still
  }
  if (!state_.shards.empty()) {
    status = state_.sync_shards(engine_, result.revision, fresh_, timeout_, &result, &lost);
    if (failed(status)) return status;
  }
  adopt();
  return {};
}

Status State::Impl::sync(Engine& engine, int32_t rank, int32_t size, const Known& told, Duration timeout,
                         SyncResult* ret_result, bool refresh_first) {
  if (Status status = not_in_callback("sync"); !status.ok()) return status;
  if (size < 1 || rank < 0 || rank >= size) {
    return {HVD_INVALID, fmt::format("state sync: rank is {} of {}: expected 0 <= rank < size", rank, size)};
  }
  // Every rank is told the same, so that all of them decide alike (contract 6).
  std::vector<Summary> known = told.ranks;
  if (!known.empty() && known.size() != static_cast<size_t>(size)) {
    return {HVD_INVALID,
            fmt::format("state sync: {} ranks are known, expected all {} or none", known.size(), size)};
  }
  const Status settled = settle();
  if (shards.empty() && told.still && !known.empty() && all_agree(known)) {
    if (!settled.ok()) return settled;
    std::lock_guard lock(mutex);
    ++statistics.syncs;
    if (ret_result != nullptr) *ret_result = {known[0].revision, 0, 0, 0};
    return {};
  }
  Status local;
  if (!settled.ok() && (!refresh_first || settled.code == HVD_TIMEOUT)) {
    local = settled;  // told to all, as a copy that fails is
  } else if (comes_late(known, rank) && !has_commit) {
    take_fed();
  } else if (refresh_first && !shards.empty() && has_commit) {
    local = restore();
    if (local.ok() && !complete()) local = cover();
  } else if (refresh_first || !complete()) {
    local = copy(false);
    if (local.ok()) local = settle();
  }
  while (true) {
    SyncResult result;
    bool lost_shards = false;
    Status status;
    try {
      status = sync_once(engine, rank, size, known, timeout, local, &result, &lost_shards);
    } catch (const std::bad_alloc&) { status = {HVD_INTERNAL, "out of memory in state sync"}; }
    if (status.ok() && ret_result != nullptr) *ret_result = result;
    if (!lost_shards) return status;
    known.assign(static_cast<size_t>(size), {});  // nobody has state any more
    local = reload(status, result.revision);
    if (local.ok()) local = copy(false);
    if (local.ok()) local = settle();
  }
}

bool State::Impl::comes_late(const std::vector<Summary>& known, int32_t rank) const {
  const auto mine = static_cast<size_t>(rank);
  if (mine >= known.size() || known[mine].has_state) return false;
  {
    const std::lock_guard lock(mutex);
    if (summary.has_state) return false;
  }
  return std::any_of(known.begin(), known.end(), [](const Summary& s) { return s.has_state; });
}

void State::Impl::take_fed() {
  for (auto& [key, variable] : variables) {
    const auto found = fed.find(key);
    if (found == fed.end()) continue;
    FeedCache::Item& item = found->second;
    if (item.spec != variable.spec_digest || variable.on_device()) continue;
    if (variable.spec.kind == VariableKind::kShard) continue;
    const bool whole = std::all_of(item.pieces.marks.begin(), item.pieces.marks.end(),
                                   [](uint8_t mark) { return (mark & Pieces::kKnown) != 0; });
    if (variable.is_object()) {
      if (!whole) continue;  // it has no pieces of its own in a sync
      variable.copy.object = Bytes(std::move(item.memory), item.bytes);
    } else {
      if (item.bytes != variable.bytes) continue;
      variable.copy.memory = std::move(item.memory);
    }
    variable.copy.pieces = std::move(item.pieces);
    variable.fed = true;
    if (whole) variable.digest = variable.copy.pieces.content();
  }
  fed.clear();
}

Status State::Impl::sync_once(Engine& engine, int32_t rank, int32_t size, const std::vector<Summary>& known,
                              Duration timeout, const Status& local, SyncResult* result, bool* ret_lost) {
  const FeedPause pause(*this);
  if (size > 1) {
    Sync sync(*this, engine, rank, size, known, timeout);
    Status status = sync.run(local);
    *result = sync.result;
    *ret_lost = sync.lost;
    return status;
  }
  if (!local.ok()) return local;
  Summary mine;
  {
    std::lock_guard lock(mutex);
    mine = summary;
  }
  *result = {mine.revision, 0, 0, 0};
  prepared = 0;
  if (!shards.empty()) {
    Status status = sync_shards(engine, mine.revision, !mine.has_state, timeout, result, ret_lost);
    if (!status.ok()) return status;
  }
  std::lock_guard lock(mutex);
  summary.has_state = true;
  ++statistics.syncs;
  return {};
}

}  // namespace hvd::state

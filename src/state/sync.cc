// Exchanges digests, then what differs, by the plan.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "state/flight.h"
#include "state/impl.h"
#include "state/sync_plan.h"

namespace hvd::state {
namespace {

using collective::Engine;
using collective::Operation;
using collective::Submission;

/// What each rank says first. Plain words: members of a job share one byte order.
struct Head {
  static constexpr uint64_t kHasState = 1, kFailed = 2;
  uint64_t flags = 0;
  uint64_t revision = 0;
  Digest digest;
  Digest spec;
  uint64_t spec_bytes = 0;
};
static_assert(sizeof(Head) == 56 && sizeof(Version) == 24, "no padding on the wire");

collective::Tensor bytes_tensor(const void* data, size_t size) {
  return {const_cast<void*>(data), HVD_DTYPE_UINT8, {static_cast<int64_t>(size)}};
}

Status at_rank(size_t rank, hvd_status code, std::string message) {
  Status status(code, std::move(message));
  status.rank = static_cast<int32_t>(rank);
  return status;
}

std::string told(const Spec* spec) { return spec == nullptr ? "absent" : spec->describe(); }

class Sync {
 public:
  Sync(State::Impl& state, Engine& engine, int32_t rank, int32_t size, Time deadline)
      : state_(state), engine_(engine), rank_(rank), size_(static_cast<size_t>(size)), deadline_(deadline) {
    for (auto& [key, variable] : state_.variables) variables_.push_back(&variable);
  }

  Status run(const Status& local);
  SyncResult result;

 private:
  Status gather(const char* name, const void* data, size_t size, std::vector<uint8_t>* all) {
    return state::gather(engine_, deadline_, name, data, size, all);
  }
  Status exchange_heads(const Status& local);
  Status name_mismatch(size_t other);
  Status exchange_versions();
  Status prepare();
  Status transfer();
  Status verify();
  Status apply_on_devices();
  Status apply();
  void adopt();

  bool receives(const Transfer& t) const {
    return std::binary_search(t.receivers.begin(), t.receivers.end(), rank_);
  }
  const std::vector<Version>& wanted() const { return versions_[static_cast<size_t>(result.root)]; }

  State::Impl& state_;
  Engine& engine_;
  const int32_t rank_;
  const size_t size_;
  const Time deadline_;
  std::vector<Variable*> variables_;  // in the order of keys
  std::vector<uint8_t> specs_;
  std::vector<Head> heads_;                     // by rank
  std::vector<std::vector<Version>> versions_;  // by rank and variable
  using Staged = std::map<const Variable*, Copy>;
  const std::shared_ptr<Staged> staged_ = std::make_shared<Staged>();  // what this rank lacks
};

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
  std::vector<Summary> summaries;
  for (size_t rank = 0; rank < size_; ++rank) {
    const Head& head = heads_[rank];
    if ((head.flags & Head::kFailed) != 0) {
      // That rank leaves with its own error: to the others it is lost.
      return at_rank(rank, HVD_PEER_LOST, fmt::format("state sync: rank {} could not save its state", rank));
    }
    summaries.push_back({(head.flags & Head::kHasState) != 0, head.revision, head.digest});
  }
  result.root = choose_root(summaries);
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

  std::vector<Spec> of_root, of_other;
  bool readable = true;
  size_t at = 0;
  for (size_t rank = 0; rank < size_ && readable; ++rank) {
    readable = length(rank) <= all.size() - at && heads_[rank].spec_bytes <= all.size();
    if (!readable) break;
    const std::span<const uint8_t> text(all.data() + at, std::min(heads_[rank].spec_bytes, length(rank)));
    if (rank == root) readable = decode(text, &of_root);
    if (rank == other) readable = decode(text, &of_other);
    at += length(rank);
  }
  std::string difference = "what they registered can't be told";
  for (size_t a = 0, b = 0; readable && (a < of_root.size() || b < of_other.size()); ++a, ++b) {
    const Spec* left = a < of_root.size() ? &of_root[a] : nullptr;
    const Spec* right = b < of_other.size() ? &of_other[b] : nullptr;
    if (left != nullptr && right != nullptr && *left == *right) continue;
    if (left != nullptr && right != nullptr && left->key != right->key) {
      (left->key < right->key ? right : left) = nullptr;
    }
    difference = fmt::format("key '{}' is {} on rank {} and {} on rank {}",
                             (left != nullptr ? left : right)->key, told(left), root, told(right), other);
    break;
  }
  return at_rank(
      other, HVD_MISMATCH,
      fmt::format("state differs between ranks: {}; expected the same keys, kinds, dtypes and shapes on "
                  "every rank",
                  difference));
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
    }
  }
  for (const Version& version : wanted()) digests.push_back(version.digest);
  if (state_.total(digests) != heads_[static_cast<size_t>(result.root)].digest) {
    return {HVD_INTERNAL,
            fmt::format("state sync: the digests of rank {} are not those of its commit", result.root)};
  }
  return {};
}

/// Room for what this rank lacks: the last commit stays until everything has arrived.
Status Sync::prepare() {
  for (size_t i = 0; i < variables_.size(); ++i) {
    const Version& version = wanted()[i];
    if (versions_[static_cast<size_t>(rank_)][i] == version) continue;
    Copy& copy = (*staged_)[variables_[i]];
    try {
      if (variables_[i]->is_object()) {
        copy.object.resize(version.size);
      } else if (variables_[i]->on_device()) {
        Status status = Memory::allocate(state_.copies, variables_[i]->memory, version.size, &copy.memory);
        if (status.ok()) continue;
        status.message = fmt::format("{} bytes to receive state key '{}': {}", version.size,
                                     variables_[i]->spec.key, status.message);
        return status;
      } else {
        copy.memory = Memory(version.size);
      }
    } catch (const std::exception&) {  // bad_alloc, length_error
      return {HVD_INTERNAL, fmt::format("out of memory: {} bytes to receive state key '{}'", version.size,
                                        variables_[i]->spec.key)};
    }
  }
  return {};
}

Status Sync::transfer() {
  const std::vector<Transfer> plan = plan_transfers(versions_, result.root);
  const auto part = [&](uint32_t index) {  // where a variable's bytes are, or go
    Variable* variable = variables_[index];
    auto staged = staged_->find(variable);
    return staged == staged_->end() ? variable->committed_bytes() : variable->data(staged->second);
  };
  struct Unpack {
    const Transfer* transfer;
    const uint8_t* from;
  };
  std::vector<Unpack> packed;
  Flight flight(engine_, deadline_);
  flight.keep(staged_);
  for (size_t i = 0; i < plan.size(); ++i) {
    const Transfer& t = plan[i];
    const bool sends = t.source == rank_;
    if (!sends && !receives(t)) continue;
    uint8_t* data = part(t.variables[0]).data();
    if (t.variables.size() > 1) {
      data = flight.room(t.bytes);
      size_t at = 0;
      for (uint32_t index : t.variables) {
        const std::span<uint8_t> from = part(index);
        if (sends) std::memcpy(data + at, from.data(), from.size());
        at += from.size();
      }
      if (!sends) packed.push_back({&t, data});
    }
    Submission submission;
    submission.name = fmt::format("hvd.sync.{}", i);
    submission.kind = collective::Kind::kBroadcast;
    submission.root = t.source;
    submission.members = t.receivers;
    submission.members.insert(
        std::upper_bound(submission.members.begin(), submission.members.end(), t.source), t.source);
    submission.outputs = {bytes_tensor(data, t.bytes)};
    flight.submit(std::move(submission));
    (sends ? result.sent_bytes : result.received_bytes) += t.bytes;
  }
  if (Status status = flight.land(); !status.ok()) return status;
  for (const Unpack& unpack : packed) {
    const uint8_t* from = unpack.from;
    for (uint32_t index : unpack.transfer->variables) {
      const std::span<uint8_t> to = part(index);
      std::memcpy(to.data(), from, to.size());
      from += to.size();
    }
  }
  return {};
}

Status Sync::verify() {
  std::vector<PieceCopy> pieces;
  for (auto& [variable, copy] : *staged_) {
    if (variable->is_object()) continue;
    copy.pieces.fit(variable->bytes);
    append_pieces(nullptr, copy.memory.data(), variable->bytes, &copy.pieces, &pieces);
  }
  copy_pieces(pieces, true);
  for (size_t i = 0; i < variables_.size(); ++i) {
    auto staged = staged_->find(variables_[i]);
    if (staged == staged_->end()) continue;
    const std::span<const uint8_t> data = variables_[i]->data(staged->second);
    const bool whole = variables_[i]->is_object();
    if ((whole ? content_digest(data.data(), data.size()) : staged->second.pieces.content()) !=
        wanted()[i].digest) {
      return {HVD_INTERNAL,
              fmt::format("state sync: what arrived for key '{}' ({} bytes) is not what rank {} has",
                          variables_[i]->spec.key, data.size(), result.root)};
    }
  }
  return {};
}

Status Sync::apply_on_devices() {
  const bool any =
      std::any_of(staged_->begin(), staged_->end(), [](const auto& s) { return s.first->on_device(); });
  if (!any) return {};
  const auto arrived = [&](const Variable& variable) -> const Memory* {
    const auto found = staged_->find(&variable);
    return found == staged_->end() ? nullptr : &found->second.memory;
  };
  Status status = state_.put_back(arrived, staged_);
  if (status.code == HVD_INTERNAL) {
    // Some may have been written.
    static_cast<void>(
        state_.put_back([&](const Variable& v) { return arrived(v) != nullptr ? &v.copy.memory : nullptr; }));
  }
  return status;
}

Status Sync::apply() {
  const auto staged = [&](Variable& variable) {
    auto found = staged_->find(&variable);
    return found == staged_->end() ? nullptr : &found->second;
  };
  if (Status status = state_.load_objects(staged, true); !status.ok()) return status;
  if (Status status = apply_on_devices(); !status.ok()) {
    const auto committed = [&](Variable& v) { return staged(v) != nullptr ? &v.copy : nullptr; };
    static_cast<void>(state_.load_objects(committed, false));
    return status;
  }
  std::vector<PieceCopy> pieces;
  for (size_t i = 0; i < variables_.size(); ++i) {
    Variable& variable = *variables_[i];
    Copy* const copy = staged(variable);
    if (copy == nullptr) continue;
    std::swap(variable.copy, *copy);
    variable.digest = wanted()[i].digest;
    if (!variable.is_object() && !variable.on_device()) {
      append_pieces(variable.live, variable.copy.memory.data(), variable.bytes, nullptr, &pieces);
    }
  }
  copy_pieces(pieces, true);
  return {};
}

void Sync::adopt() {
  const Digest digest = state_.total();
  const uint64_t bytes = state_.committed_bytes();
  std::lock_guard lock(state_.mutex);
  state_.summary = {true, result.revision, digest};
  state_.statistics.bytes = bytes;
  ++state_.statistics.syncs;
}

Status Sync::run(const Status& local) {
  const auto failed = [](const Status& status) { return !status.ok(); };
  Status status = exchange_heads(local);
  if (failed(status)) return status;
  const Head& root = heads_[static_cast<size_t>(result.root)];
  const bool differ =
      std::any_of(heads_.begin(), heads_.end(), [&](const Head& h) { return h.digest != root.digest; });
  if (differ) {
    if (failed(status = exchange_versions()) || failed(status = prepare())) return status;
    status = transfer();
    {
      std::lock_guard lock(state_.mutex);
      if (status.ok()) state_.statistics.sync_sent_bytes += result.sent_bytes;
      if (status.ok()) state_.statistics.sync_received_bytes += result.received_bytes;
    }
    if (failed(status) || failed(status = verify()) || failed(status = apply())) return status;
  }
  adopt();
  return {};
}

}  // namespace

Status State::Impl::sync(Engine& engine, int32_t rank, int32_t size, const std::vector<Summary>& known,
                         Duration timeout, SyncResult* ret_result, bool refresh_first) {
  if (Status status = not_in_callback("sync"); !status.ok()) return status;
  if (size < 1 || rank < 0 || rank >= size) {
    return {HVD_INVALID, fmt::format("state sync: rank is {} of {}: expected 0 <= rank < size", rank, size)};
  }
  const Time deadline = now() + timeout;
  const Status settled = settle();
  // Every rank has the same `known`, so that all of them decide alike (contract 6).
  if (known.size() == static_cast<size_t>(size) && all_agree(known)) {
    if (!settled.ok()) return settled;
    std::lock_guard lock(mutex);
    ++statistics.syncs;
    if (ret_result != nullptr) *ret_result = {known[0].revision, 0, 0, 0};
    return {};
  }
  Status local;
  if (!settled.ok() && (!refresh_first || settled.code == HVD_TIMEOUT)) {
    local = settled;  // told to all, as a copy that fails is
  } else if (refresh_first || !complete()) {
    local = copy(false);
    if (local.ok()) local = settle();
  }
  if (size == 1) {
    if (!local.ok()) return local;
    std::lock_guard lock(mutex);
    summary.has_state = true;
    ++statistics.syncs;
    if (ret_result != nullptr) *ret_result = {summary.revision, 0, 0, 0};
    return {};
  }
  Sync sync(*this, engine, rank, size, deadline);
  Status status;
  try {
    status = sync.run(local);
  } catch (const std::bad_alloc&) { status = {HVD_INTERNAL, "out of memory in state sync"}; }
  if (status.ok() && ret_result != nullptr) *ret_result = sync.result;
  return status;
}

}  // namespace hvd::state

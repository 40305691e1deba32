// What the ranks of a sync tell each other of large variables that somebody lacks: who has which pieces, and
// who can read whose memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "state/pages.h"
#include "state/sync.h"

namespace hvd::state {

namespace {

Status strange(const char* what, size_t got, size_t expected) {
  return {HVD_INTERNAL, fmt::format("state sync: {} bytes of {}: expected {}", got, what, expected)};
}

/// Whether each piece of a rank's last commit has its digest: what devices hold is digested as a whole.
bool tells_pieces(const Variable& variable) {
  const Pieces& held = variable.copy.pieces;
  return !variable.on_device() && held.digests.size() == pieces_of(variable.bytes) &&
         std::all_of(held.marks.begin(), held.marks.end(),
                     [](uint8_t m) { return (m & Pieces::kKnown) != 0; });
}

Pieces pieces_in(const Variable& variable) {
  if (tells_pieces(variable)) return variable.copy.pieces;
  Pieces pieces;
  pieces.fit(variable.bytes);
  std::vector<PieceCopy> list;
  append_pieces(nullptr, variable.copy.memory.data(), variable.bytes, &pieces, &list);
  copy_pieces(list, true);
  return pieces;
}

}  // namespace

/// What is told by pieces. Each rank tells a row: bits of the ranks whose memory it can read, bits of the
/// pieces that it has, and for each variable where its commit lies.
struct Sync::Split {
  size_t ranks = 0;
  std::vector<size_t> variables;
  size_t pieces = 0;  // of all of them

  size_t has_at() const { return (ranks + 7) / 8; }
  size_t addresses_at() const { return has_at() + (pieces + 7) / 8; }
  size_t bytes() const { return addresses_at() + variables.size() * sizeof(uint64_t); }
};

Status Sync::exchange_pieces() {
  holdings_ = hold_whole(versions_, result.root);
  const Split split = split_lacked();
  if (split.variables.empty()) return {};
  std::vector<uint8_t> all;
  if (Status status = exchange_reach(split, &all); !status.ok()) return status;
  // The root's digests of all pieces follow its own reach.
  const uint8_t* const wanted = all.data() + (static_cast<size_t>(result.root) + 1) * sizeof(Reach);
  const std::vector<uint8_t> row = row_of(split, wanted);
  if (Status status = gather("hvd.sync.pieces", row.data(), row.size(), &all); !status.ok()) return status;
  if (all.size() != size_ * row.size()) return strange("pieces", all.size(), size_ * row.size());
  const uint8_t* const got = all.data() + static_cast<size_t>(rank_) * row.size();
  if (Status status = echoed("pieces", row.data(), got, row.size()); !status.ok()) return status;
  take_rows(split, all);
  return {};
}

/// The same on all ranks: where a tensor lies may not be.
Sync::Split Sync::split_lacked() {
  Split split;
  split.ranks = size_;
  for (size_t v = 0; v < variables_.size(); ++v) {
    Holdings::Item& item = holdings_.variables[v];
    if (item.size < kDirectFrom) continue;
    const bool lacked =
        std::any_of(holdings_.has.begin(), holdings_.has.end(), [&](const auto& row) { return !row[v][0]; });
    if (!lacked) continue;
    const bool object = variables_[v]->is_object();
    item.piece = object ? kRange : kPiece;
    for (auto& row : holdings_.has) row[v].resize(item.pieces(), row[v][0]);
    if (object) continue;
    split.variables.push_back(v);
    split.pieces += item.pieces();
  }
  return split;
}

/// Where each rank can be read, and what the root has.
Status Sync::exchange_reach(const Split& split, std::vector<uint8_t>* ret_all) {
  const auto root = static_cast<size_t>(result.root);
  std::vector<uint8_t> text(sizeof(Reach));
  const Reach mine = state_.reads_others ? own_reach() : Reach();
  std::memcpy(text.data(), &mine, sizeof(mine));
  if (rank_ == result.root) {
    for (const size_t v : split.variables) {
      const Pieces held = pieces_in(*variables_[v]);
      const auto* digests = reinterpret_cast<const uint8_t*>(held.digests.data());
      text.insert(text.end(), digests, digests + held.digests.size() * sizeof(Digest));
    }
  }
  if (Status status = gather("hvd.sync.reach", text.data(), text.size(), ret_all); !status.ok())
    return status;
  const std::vector<uint8_t>& all = *ret_all;
  const size_t extra = split.pieces * sizeof(Digest);
  if (all.size() != size_ * sizeof(Reach) + extra)
    return strange("pieces", all.size(), size_ * sizeof(Reach) + extra);
  reach_.resize(size_);
  for (size_t rank = 0; rank < size_; ++rank) {
    std::memcpy(&reach_[rank], all.data() + rank * sizeof(Reach) + (rank > root ? extra : 0), sizeof(Reach));
  }
  return {};
}

/// What this rank can read and has, of pieces with the digests `wanted`, and where it has it.
std::vector<uint8_t> Sync::row_of(const Split& split, const uint8_t* wanted) const {
  std::vector<uint8_t> row(split.bytes());
  const auto set = [&](size_t from, size_t bit) {
    row[from + bit / 8] |= static_cast<uint8_t>(1U << (bit % 8));
  };
  for (size_t rank = 0; rank < size_ && state_.reads_others; ++rank) {
    if (rank != static_cast<size_t>(rank_) && can_read(reach_[rank])) set(0, rank);
  }
  size_t bit = 0;
  uint8_t* address_at = row.data() + split.addresses_at();
  for (const size_t v : split.variables) {
    const Variable& variable = *variables_[v];
    const Pieces& held = variable.copy.pieces;
    const size_t pieces = holdings_.variables[v].pieces();
    const bool known =
        (variable.committed || variable.fed) && !variable.on_device() && held.digests.size() == pieces;
    for (size_t piece = 0; piece < pieces; ++piece, ++bit) {
      if (known && (held.marks[piece] & Pieces::kKnown) != 0 &&
          std::memcmp(&held.digests[piece], wanted + bit * sizeof(Digest), sizeof(Digest)) == 0) {
        set(split.has_at(), bit);
      }
    }
    // What a device's driver has pinned can't be read.
    const auto address = variable.on_device() ? 0 : reinterpret_cast<uint64_t>(variable.copy.memory.data());
    std::memcpy(address_at, &address, sizeof(address));
    address_at += sizeof(address);
  }
  return row;
}

/// What all ranks can read and have.
void Sync::take_rows(const Split& split, const std::vector<uint8_t>& rows) {
  for (const size_t v : split.variables) holdings_.variables[v].readable = true;
  holdings_.reads.assign(size_, std::vector<bool>(size_));
  addresses_.assign(size_, std::vector<uint64_t>(variables_.size()));
  for (size_t rank = 0; rank < size_; ++rank) {
    const uint8_t* const told = rows.data() + rank * split.bytes();
    const auto is_set = [&](size_t from, size_t bit) { return (told[from + bit / 8] >> (bit % 8) & 1) != 0; };
    for (size_t other = 0; other < size_; ++other) holdings_.reads[rank][other] = is_set(0, other);
    size_t bit = 0;
    const uint8_t* address_at = told + split.addresses_at();
    for (const size_t v : split.variables) {
      auto&& has = holdings_.has[rank][v];
      const bool whole = has[0];  // by its digest: so it has each piece
      for (size_t piece = 0; piece < has.size(); ++piece, ++bit)
        has[piece] = whole || is_set(split.has_at(), bit);
      uint64_t& address = addresses_[rank][v];
      std::memcpy(&address, address_at, sizeof(address));
      address_at += sizeof(address);
      const bool any = std::find(has.begin(), has.end(), true) != has.end();
      if (any && address == 0) holdings_.variables[v].readable = false;
    }
  }
}

}  // namespace hvd::state

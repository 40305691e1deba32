// What the ranks of a sync move: by the plan, into room of its own or straight to where it belongs, digested
// while the rest is on its way.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "state/pages.h"
#include "state/sync.h"

namespace hvd::state {

using collective::Operation;
using collective::Submission;

/// Room for what this rank lacks: the last commit of a rank with state stays until everything has arrived.
Status Sync::prepare() {
  std::vector<std::span<uint8_t>> fresh;
  for (size_t i = 0; i < variables_.size(); ++i) {
    Variable& variable = *variables_[i];
    const Version& version = wanted()[i];
    if (!lacks(i)) {
      if (variable.fed && variable.is_object())
        (*staged_)[&variable] = {{}, {}, variable.copy.object};  // to be loaded
      continue;
    }
    try {
      if (in_place(variable)) {
        if (variable.copy.memory.size() < variable.bytes) {
          variable.copy.memory = Memory(variable.bytes);
          variable.copy.pieces.fit(0);
          fresh.push_back(variable.committed_bytes());
        }
        variable.copy.pieces.fit(variable.bytes);
        variable.committed = false;  // until all is there
        continue;
      }
      Copy& copy = (*staged_)[&variable];
      if (variable.is_object()) {
        copy.object.resize(version.size);
      } else if (variable.on_device()) {
        Status status = Memory::allocate(state_.copies, variable.memory, version.size, &copy.memory);
        if (status.ok()) continue;
        status.message = fmt::format("{} bytes to receive state key '{}': {}", version.size,
                                     variable.spec.key, status.message);
        return status;
      } else {
        copy.memory = Memory(version.size);
        if (lacks_all(i)) fresh.push_back(variable.data(copy));
        if (!lacks_all(i)) copy.pieces = variable.copy.pieces;
      }
    } catch (const std::exception&) {  // bad_alloc, length_error
      return {HVD_INTERNAL, fmt::format("out of memory: {} bytes to receive state key '{}'", version.size,
                                        variable.spec.key)};
    }
  }
  if (!fresh.empty()) get_pages(fresh);
  for (auto& [variable, copy] : *staged_) {
    if (!variable->is_object()) copy.pieces.fit(variable->bytes);
  }
  return {};
}

/// Where a part is, or goes.
uint8_t* Sync::place_of(const Part& part) {
  Variable& variable = *variables_[part.variable];
  const uint64_t piece = holdings_.variables[part.variable].piece;
  const auto& has = holdings_.has[static_cast<size_t>(rank_)][part.variable];
  if (has[piece == 0 ? 0 : part.offset / piece]) return variable.committed_bytes().data() + part.offset;
  if (in_place(variable)) return static_cast<uint8_t*>(variable.live) + part.offset;
  return variable.data(staged_->at(&variable)).data() + part.offset;
}

void Sync::append_arrived(const Part& part, std::vector<PieceCopy>* list) {
  Variable& variable = *variables_[part.variable];
  if (variable.is_object()) return;
  const bool straight = in_place(variable);
  Copy& copy = straight ? variable.copy : staged_->at(&variable);
  const uint8_t* const from = straight ? static_cast<uint8_t*>(variable.live) : copy.memory.data();
  for (uint64_t at = part.offset; at < part.offset + part.size; at += kPiece) {
    list->push_back({straight ? copy.memory.data() + at : nullptr, from + at,
                     std::min<size_t>(kPiece, part.offset + part.size - at), &copy.pieces, at / kPiece});
  }
}

/// Each piece is read, and digested while it is in the core's cache.
Status Sync::read_directly(const std::vector<const Transfer*>& transfers) {
  struct Read {
    const Transfer* transfer;
    uint64_t address;
    PieceCopy piece;
  };
  std::vector<Read> reads;
  std::vector<PieceCopy> pieces;
  for (const Transfer* transfer : transfers) {
    for (const Part& part : transfer->parts) {
      pieces.clear();
      append_arrived(part, &pieces);
      uint64_t address = addresses_[static_cast<size_t>(transfer->source)][part.variable] + part.offset;
      for (const PieceCopy& piece : pieces) {
        reads.push_back({transfer, address, piece});
        address += piece.size;
      }
    }
  }
  std::atomic<int32_t> failed{-1};  // whose memory could not be read
  in_parallel(reads.size(), reads.size() * kPiece, [&](size_t i) {
    const Read& read = reads[i];
    if (failed.load(std::memory_order_relaxed) >= 0) return;
    const Reach& reach = reach_[static_cast<size_t>(read.transfer->source)];
    auto* const to = const_cast<uint8_t*>(read.piece.from);
    if (read.piece.size == kPiece) touch(to, kPiece);
    if (!read_from(reach, read.address, to, read.piece.size)) {
      failed = read.transfer->source;
      return;
    }
    copy_piece(read.piece);
  });
  if (failed < 0) return {};
  Status status(HVD_PEER_LOST,
                fmt::format("state sync: the memory of rank {} can't be read any more", failed.load()));
  return status.at_rank(failed);
}

Status Sync::transfer() {
  struct Arrival {
    const Transfer* transfer;
    std::shared_ptr<Operation> operation;
    const uint8_t* packed;  // NULL: where it belongs already
  };
  std::vector<Arrival> arrivals;
  std::vector<const Transfer*> direct;
  Flight flight(engine_, deadline_);
  flight.keep(staged_);
  for (size_t i = 0; i < plan_.size(); ++i) {
    const Transfer& t = plan_[i];
    const bool sends = t.source == rank_;
    if (!sends && !receives(t)) continue;
    (sends ? result.sent_bytes : result.received_bytes) += t.bytes;
    if (t.direct) {
      if (!sends) direct.push_back(&t);
      continue;
    }
    uint8_t* data = place_of(t.parts[0]);
    const bool packed = t.parts.size() > 1;
    if (packed) {
      data = flight.room(t.bytes);
      size_t at = 0;
      for (const Part& part : t.parts) {
        if (sends) std::memcpy(data + at, place_of(part), part.size);
        at += part.size;
      }
    }
    Submission submission;
    submission.name = fmt::format("hvd.sync.{}", i);
    submission.kind = collective::Kind::kBroadcast;
    submission.root = t.source;
    submission.members = t.receivers;
    submission.members.insert(
        std::upper_bound(submission.members.begin(), submission.members.end(), t.source), t.source);
    submission.outputs = {{data, HVD_DTYPE_UINT8, {static_cast<int64_t>(t.bytes)}}};
    std::shared_ptr<Operation> operation = flight.submit(std::move(submission));
    if (!sends) arrivals.push_back({&t, std::move(operation), packed ? data : nullptr});
  }
  Status status = read_directly(direct);
  std::vector<PieceCopy> pieces;
  for (const Arrival& arrival : arrivals) {
    if (!status.ok()) break;
    status = flight.arrive(*arrival.operation);
    if (!status.ok()) break;
    pieces.clear();
    const uint8_t* from = arrival.packed;
    for (const Part& part : arrival.transfer->parts) {
      if (from != nullptr) {
        std::memcpy(place_of(part), from, part.size);
        from += part.size;
      }
      append_arrived(part, &pieces);
    }
    copy_pieces(pieces, true);
  }
  Status landed = flight.land();
  return status.ok() ? landed : status;
}

Status Sync::verify() {
  for (size_t i = 0; i < variables_.size(); ++i) {
    if (!lacks(i)) continue;
    Variable& variable = *variables_[i];
    Digest got;
    if (variable.is_object()) {
      got = staged_->at(&variable).digest_object();
    } else {
      got = (in_place(variable) ? variable.copy : staged_->at(&variable)).pieces.content();
    }
    if (got != wanted()[i].digest) {
      return {HVD_INTERNAL,
              fmt::format("state sync: what arrived for key '{}' ({} bytes) is not what rank {} has",
                          variable.spec.key, wanted()[i].size, result.root)};
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
  Status status = state_.put_back(state_.device_ranges(arrived), staged_);
  if (status.code == HVD_INTERNAL) {
    // Some may have been written.
    static_cast<void>(state_.put_back(state_.device_ranges(
        [&](const Variable& v) { return arrived(v) != nullptr && v.committed ? &v.copy.memory : nullptr; })));
  }
  return status;
}

/// Live memory does not have what this worker was fed. Returns how many bytes that is.
uint64_t Sync::append_fed(size_t variable, std::vector<PieceCopy>* list) {
  Variable& v = *variables_[variable];
  if (v.is_object()) return lacks(variable) ? 0 : v.copy.object.size();  // its load callback has it
  const auto& has = holdings_.has[static_cast<size_t>(rank_)][variable];
  const size_t piece = holdings_.variables[variable].piece == 0 ? v.bytes : kPiece;
  uint64_t fed = 0;
  for (size_t i = 0; i < has.size(); ++i) {
    if (!has[i]) continue;
    const size_t end = std::min((i + 1) * piece, v.bytes);
    for (size_t at = i * piece; at < end; at += kPiece) {
      const size_t size = std::min(kPiece, end - at);
      list->push_back({static_cast<uint8_t*>(v.live) + at, v.copy.memory.data() + at, size, nullptr, 0});
      fed += size;
    }
  }
  return fed;
}

/// Where what has arrived for a variable goes from `copy`.
void Sync::append_staged(size_t variable, const Copy& copy, std::vector<PieceCopy>* list) {
  Variable& v = *variables_[variable];
  if (lacks_all(variable)) {
    if (!v.is_object() && !v.on_device())
      append_pieces(v.live, copy.memory.data(), v.bytes, nullptr, list);  // it becomes the commit's own
    return;
  }
  // Only host tensors are told by pieces.
  const auto& has = holdings_.has[static_cast<size_t>(rank_)][variable];
  for (size_t piece = 0; piece < has.size(); ++piece) {
    if (has[piece]) continue;
    const size_t at = piece * kPiece, size = std::min(kPiece, v.bytes - at);
    const uint8_t* const from = copy.memory.data() + at;
    list->push_back({v.copy.memory.data() + at, from, size, nullptr, 0});
    list->push_back({static_cast<uint8_t*>(v.live) + at, from, size, nullptr, 0});
  }
}

Status Sync::apply() {
  const auto staged = [&](Variable& variable) {
    auto found = staged_->find(&variable);
    return found == staged_->end() ? nullptr : &found->second;
  };
  // All that can fail comes first (contract 4).
  std::vector<PieceCopy> pieces;
  uint64_t fed = 0;
  for (size_t i = 0; i < variables_.size(); ++i) {
    Variable& variable = *variables_[i];
    if (variable.fed) fed += append_fed(i, &pieces);
    const Copy* const copy = lacks(i) ? staged(variable) : nullptr;
    if (copy != nullptr) append_staged(i, *copy, &pieces);
  }
  if (Status status = state_.load_objects(staged, true); !status.ok()) return status;
  if (Status status = apply_on_devices(); !status.ok()) {
    const auto committed = [&](Variable& v) {
      return staged(v) != nullptr && v.committed ? &v.copy : nullptr;
    };
    static_cast<void>(state_.load_objects(committed, false));
    return status;
  }
  fed_bytes_ += fed;
  for (size_t i = 0; i < variables_.size(); ++i) {
    Variable& variable = *variables_[i];
    if (std::exchange(variable.fed, false)) variable.committed = true;
    if (!lacks(i)) continue;
    Copy* const copy = staged(variable);
    variable.digest = wanted()[i].digest;
    variable.committed = true;
    if (copy == nullptr) continue;  // in place
    if (lacks_all(i)) {
      std::swap(variable.copy, *copy);
    } else {
      std::swap(variable.copy.pieces, copy->pieces);
    }
  }
  copy_pieces(pieces, true);
  return {};
}

void Sync::adopt() {
  const Digest digest = state_.total();
  const uint64_t bytes = state_.committed_bytes() + state_.shards.own_bytes();
  std::lock_guard lock(state_.mutex);
  state_.has_commit = true;
  state_.summary = {true, result.revision, digest};
  state_.statistics.fed_bytes += fed_bytes_;
  state_.statistics.sync_sent_bytes += result.sent_bytes;
  state_.statistics.sync_received_bytes += result.received_bytes;
  state_.statistics.bytes = bytes;
  ++state_.statistics.syncs;
}

}  // namespace hvd::state

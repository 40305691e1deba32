// What a call says of itself that stays the same from one call to the next. A rank describes a call once and
// sends an id from then on; rank 0 keeps what the ids of each rank stand for. Both tables are bounded.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "collective/submission.h"

namespace hvd::collective {

inline constexpr uint32_t kSignatures = 4096;                // ids of one rank: 1 to kSignatures
inline constexpr size_t kSignatureBytes = size_t{16} << 20;  // of one rank's signatures
inline constexpr Duration kMaxTimeout = std::chrono::hours(24 * 365);

/// dtype and shape of a tensor.
struct Spec {
  hvd_dtype dtype = 0;
  std::vector<int64_t> shape;
  bool operator==(const Spec&) const = default;
};

/// Bytes of a tensor of this spec; -1 if that is more than an int64 holds or the spec makes no sense.
int64_t spec_bytes(hvd_dtype dtype, std::span<const int64_t> shape);

/// Under which name ranks meet: sets of one name that share no lowest member are different sets.
std::string matching_key(const std::string& name, const std::string& set, std::span<const int32_t> members);

struct Signature {
  std::string name, set;
  Kind kind = Kind::kBarrier;
  hvd_reduction reduction = 0;          // allreduce, reducescatter
  int32_t root = 0;                     // broadcasts
  double prescale = 1, postscale = 1;   // allreduce, reducescatter
  hvd_memory memory = HVD_MEMORY_HOST;  // of all tensors
  std::vector<Spec> specs;              // one per tensor
  std::vector<int64_t> splits;          // alltoall: rows to each member; reducescatter: of each member
  /// Device memory: number of its device and stream among those of this rank, from 1; 0: they have none, and
  /// the call travels with no other. Each rank's own.
  uint32_t place = 0;
  /// Device memory, allgather and alltoall: rows that each output has room for. Where a result does not fit
  /// it can't go elsewhere, so that rank 0 has to know before anybody begins.
  std::vector<int64_t> rooms;
  std::vector<int32_t> members;  // empty: all ranks
  int32_t priority = 0;
  Duration timeout{0};  // whole milliseconds

  // Set by seal().
  std::string key;
  uint64_t digest = 0;
  size_t payload = 0;  // bytes of all tensors as they lie in a message
  size_t weight = 0;   // bytes that this takes, about

  void seal();
  bool same_as(const Signature& other) const;
  /// Is this the signature of that call?
  bool describes(const Submission& submission, uint32_t place) const;
  bool on_device() const { return memory != HVD_MEMORY_HOST; }
  bool of_all(size_t size) const { return members.empty() || members.size() == size; }
  size_t member_count(size_t size) const { return members.empty() ? size : members.size(); }
};
using SignaturePtr = std::shared_ptr<const Signature>;

SignaturePtr make_signature(const Submission& submission, uint32_t place);

/// Numbers for the devices and streams of a rank's calls: what lies in different ones can't travel together.
class Places {
 public:
  uint32_t of(const Submission& submission);

 private:
  std::vector<std::pair<int32_t, const void*>> known_;
};

/// Where the next tensor of a message's payload begins.
inline constexpr size_t payload_aligned(size_t offset) { return (offset + 15) / 16 * 16; }

/// A rank's own calls.
class SentSignatures {
 public:
  struct Found {
    SignaturePtr signature;
    uint32_t id = 0;     // 0: the other end shall not remember it
    bool known = false;  // the other end has it under that id
  };
  Found find(const Submission& submission);

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> ids_;  // by key
  std::vector<SignaturePtr> slots_;                                       // by id - 1
  uint32_t next_ = 0;
  size_t weight_ = 0;
  Places places_;
};

/// Rank 0: what the ids of all ranks stand for. Equal signatures are one object.
class ReceivedSignatures {
 public:
  explicit ReceivedSignatures(size_t size) : ranks_(size) {}
  /// id 0: only finds the one object.
  SignaturePtr remember(size_t rank, uint32_t id, SignaturePtr signature);
  /// NULL if the id is unknown or stands for something else.
  SignaturePtr find(size_t rank, uint32_t id, uint64_t digest) const;

 private:
  struct Rank {
    std::vector<SignaturePtr> slots;
    size_t weight = 0;
  };
  SignaturePtr interned(SignaturePtr signature);

  std::vector<Rank> ranks_;
  std::unordered_multimap<uint64_t, std::weak_ptr<const Signature>> interned_;  // by digest
  size_t sweep_at_ = size_t{2} * kSignatures;
};

}  // namespace hvd::collective

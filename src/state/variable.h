// One registered variable: where it lives, what it is, and its copy in the last commit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/callback.h"
#include "base/digest.h"
#include "base/status.h"
#include "collective/engine.h"
#include "state/memory.h"
#include "state/pieces.h"

namespace hvd::state {

enum class VariableKind : uint8_t { kTensor = 1, kValue = 2, kObject = 3, kShard = 4 };

/// What all ranks must agree on. A value is described as uint8 of its size; an object's size is no part of
/// it, but what its owner says of it is.
struct Spec {
  std::string key;
  VariableKind kind = VariableKind::kTensor;
  hvd_dtype dtype = 0;
  std::vector<int64_t> shape;  // shard: of the whole vector; its bytes are no variable's, Shards keeps them
  std::string detail = {};     // object, shard; at most 255 bytes
  bool operator==(const Spec&) const = default;

  /// "tensor float32[3,4]", "value of 8 bytes", "object", or the object's detail
  std::string describe() const;
};

/// Checks key, kind and shape, and gives the size in bytes (0 for objects). Throws Error(HVD_INVALID).
size_t checked_bytes(const Spec& spec);

/// Bytes of specs for digests and for other ranks. decode gives false if the bytes are not what encode makes.
void encode(const Spec& spec, std::vector<uint8_t>* bytes);
bool decode(std::span<const uint8_t> bytes, std::vector<Spec>* specs);
/// The first key that two ranks have registered differently, in words, from their encoded specs.
std::string difference(std::span<const uint8_t> left, size_t left_rank, std::span<const uint8_t> right,
                       size_t right_rank);

/// Bytes of a variable as it was at one time. Objects grow as they are written; the rest has a fixed size.
struct Copy {
  Memory memory;
  Pieces pieces;  // of a tensor or value in host memory, or of an object
  Bytes object;

  /// Takes the object's digests, and gives that of all of it.
  Digest digest_object();
};

/// What a save callback gave, until the commit takes it.
struct Saved {
  Bytes written;
  bool lent = false;           // some of it is borrowed
  bool for_call = false;       // and some of that until the call returns
  std::vector<Extent> parts;   // all of it in order
  size_t size = 0;             // of all of it
  Bytes room;                  // for the copy, if what is there is too small
  std::vector<Extent> pieces;  // parts, cut at the borders of pieces

  /// content_digest of what the parts have now. May throw std::bad_alloc.
  Digest content() const;
};

enum class Lent : uint8_t { kForCall, kUntilEnd };
/// See hvd_state_lend and hvd_state_lend_until_end. `sink` is what a save callback was given.
int32_t lend(void* sink, const void* const* data, const size_t* sizes, size_t count,
             Lent how = Lent::kForCall) noexcept;

struct Variable {
  Spec spec;
  Digest spec_digest;
  void* live = nullptr;  // tensor, value: borrowed
  hvd_memory memory = HVD_MEMORY_HOST;
  int32_t device = 0;      // of a tensor in device memory
  void* stream = nullptr;  // of a tensor in device memory: borrowed
  size_t bytes = 0;        // tensor, value
  Callback<hvd_save_fn> save;
  Callback<hvd_load_fn> load;

  bool committed = false;
  Copy copy;         // of the last commit, if committed
  Saved saved;       // object
  Digest digest;     // of the copy; random before the first
  bool fed = false;  // the pieces of `copy` that are known are no commit's: `live` does not have them
  // Of the commit that is under way, unless that is made in place.
  bool copying = false;  // it has a part in that
  Copy next;
  Digest next_digest;
  std::optional<Digest> promised;  // of what the program must not write before the end: option check_commits

  bool on_device() const { return memory != HVD_MEMORY_HOST; }
  bool is_object() const { return spec.kind == VariableKind::kObject; }
  /// The save callback has lent memory, and all of it until the end of a hidden commit.
  bool is_lent_until_end() const { return saved.lent && !saved.for_call; }
  /// Digest of what the program must not write during a hidden commit, as it is now: a tensor in host memory,
  /// or what an object has lent until the end.
  std::optional<Digest> held_still() const;
  std::span<uint8_t> data(Copy& of) const {
    if (is_object()) return {of.object.data(), of.object.size()};
    return {of.memory.data(), bytes};
  }
  std::span<uint8_t> committed_bytes() { return data(copy); }
  std::span<const uint8_t> committed_bytes() const {
    if (is_object()) return {copy.object.data(), copy.object.size()};
    return {copy.memory.data(), bytes};
  }

  /// Runs the save callback into `saved`, or the load callback on some bytes. Nothing is thrown.
  Status run_save();
  /// Memory for what was saved, before anything of `into` is written. `fresh`: what of it has no pages yet.
  Status make_room(const Copy& into, std::vector<std::span<uint8_t>>* fresh);
  /// Appends the copy of what was saved, as it is after take_saved(). After make_room(). May throw
  /// std::bad_alloc; what `into` holds stays.
  void append_saved(Copy* into, std::vector<PieceCopy>* list);
  /// The saved object takes the place of `into` as soon as the pieces are copied.
  void take_saved(Copy* into) noexcept;
  Status run_load(std::span<const uint8_t> data) const;
};

}  // namespace hvd::state

// Saves, restores and digests one variable.
#include "state/variable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "numeric/dtype.h"

namespace hvd::state {
namespace {

constexpr size_t kMaxKey = 255;
constexpr size_t kMaxDetail = 255;
constexpr size_t kMaxValue = 65536;
constexpr size_t kMaxDimensions = 8;

[[noreturn]] void unfit(const Spec& spec, const std::string& what) {
  throw Error(HVD_INVALID, fmt::format("state key '{}': {}", spec.key, what));
}

size_t tensor_bytes(const Spec& spec) {
  const size_t element = dtype_size(spec.dtype);
  if (element == 0) {
    unfit(spec,
          fmt::format("dtype is {}: expected one from {} (HVD_DTYPE_UINT8) to {} (HVD_DTYPE_COMPLEX128)",
                      spec.dtype, int{HVD_DTYPE_UINT8}, int{kLastDtype}));
  }
  if (spec.shape.size() > kMaxDimensions) {
    unfit(spec, fmt::format("it has {} dimensions: expected at most {}", spec.shape.size(), kMaxDimensions));
  }
  bool empty = false;
  for (int64_t length : spec.shape) {
    if (length < 0)
      unfit(spec, fmt::format("shape is [{}]: expected no negative length", fmt::join(spec.shape, ",")));
    empty = empty || length == 0;
  }
  if (empty) return 0;
  int64_t bytes = static_cast<int64_t>(element);
  for (int64_t length : spec.shape) {
    if (__builtin_mul_overflow(bytes, length, &bytes)) {
      unfit(spec, fmt::format("shape is [{}] of {}: expected at most {} bytes", fmt::join(spec.shape, ","),
                              dtype_name(spec.dtype), std::numeric_limits<int64_t>::max()));
    }
  }
  return static_cast<size_t>(bytes);
}

// Numbers travel as the machine has them: members of a job share one byte order, as their tensors do.
template <class T>
void put(std::vector<uint8_t>* bytes, T value) {
  const auto* p = reinterpret_cast<const uint8_t*>(&value);
  bytes->insert(bytes->end(), p, p + sizeof(value));
}

template <class T>
bool take(std::span<const uint8_t>* bytes, T* value) {
  if (bytes->size() < sizeof(T)) return false;
  std::memcpy(value, bytes->data(), sizeof(T));
  *bytes = bytes->subspan(sizeof(T));
  return true;
}

bool decode_one(std::span<const uint8_t>* bytes, Spec* spec) {
  uint8_t length = 0, kind = 0, dimensions = 0;
  if (!take(bytes, &length) || bytes->size() < length) return false;
  spec->key.assign(reinterpret_cast<const char*>(bytes->data()), length);
  *bytes = bytes->subspan(length);
  if (!take(bytes, &kind) || kind < 1 || kind > 4 || !take(bytes, &spec->dtype) ||
      !take(bytes, &dimensions) || dimensions > kMaxDimensions) {
    return false;
  }
  spec->kind = static_cast<VariableKind>(kind);
  spec->shape.resize(dimensions);
  for (int64_t& extent : spec->shape) {
    if (!take(bytes, &extent)) return false;
  }
  if (!take(bytes, &length) || bytes->size() < length) return false;
  spec->detail.assign(reinterpret_cast<const char*>(bytes->data()), length);
  *bytes = bytes->subspan(length);
  return true;
}

// What the save callback writes to. Exceptions must not pass through the program's C frames.
struct Sink {
  Saved* saved;
  bool out_of_memory = false;
  bool null_data = false;

  template <class Add>
  int32_t add(const void* data, size_t size, Add add) {
    if (out_of_memory) return 1;
    if (size == 0) return 0;
    if (data == nullptr) {
      null_data = true;
      return 1;
    }
    try {
      if (size > SIZE_MAX - saved->size) throw std::bad_alloc();
      add(*saved);
      saved->size += size;
    } catch (const std::exception&) { out_of_memory = true; }
    return out_of_memory ? 1 : 0;
  }
};

int32_t write(void* context, const void* data, size_t size) {
  return static_cast<Sink*>(context)->add(data, size, [&](Saved& saved) {
    // What is written may move yet: its parts have no address before the end.
    if (saved.parts.empty() || saved.parts.back().data != nullptr) saved.parts.push_back({nullptr, 0});
    saved.written.append(data, size);
    saved.parts.back().size += size;
  });
}

// A callback's outcome: 0, a code, or an exception where the program is C++ as well.
template <class Call>
Status called(const std::string& key, const char* name, Call call) {
  std::string why;
  int32_t code = 0;
  try {
    code = call();
    if (code == 0) return {};
    why = fmt::format("returned {}: expected 0", code);
  } catch (const std::exception& e) { why = fmt::format("threw: {}", e.what()); } catch (...) {
    why = "threw an exception";
  }
  Status status(HVD_CALLBACK_FAILED, fmt::format("{} callback of state key '{}' {}", name, key, why));
  status.vendor_code = code;
  return status;
}

}  // namespace

int32_t lend(void* context, const void* const* data, const size_t* sizes, size_t count, Lent how) noexcept {
  auto* sink = static_cast<Sink*>(context);
  if (sink == nullptr) return 1;
  if (count > 0 && (data == nullptr || sizes == nullptr)) {
    sink->null_data = true;
    return 1;
  }
  for (size_t i = 0; i < count; ++i) {
    const int32_t refused = sink->add(data[i], sizes[i], [&](Saved& saved) {
      saved.parts.push_back({data[i], sizes[i]});
      saved.lent = true;
      saved.for_call = saved.for_call || how == Lent::kForCall;
    });
    if (refused != 0) return refused;
  }
  return 0;
}

std::string Spec::describe() const {
  if (kind == VariableKind::kObject) return detail.empty() ? "object" : detail;
  if (kind == VariableKind::kValue) return fmt::format("value of {} bytes", shape.empty() ? 0 : shape[0]);
  if (kind == VariableKind::kShard) {
    return fmt::format("shards of {}[{}] with {}", dtype_name(dtype), fmt::join(shape, ","), detail);
  }
  return fmt::format("tensor {}[{}]", dtype_name(dtype), fmt::join(shape, ","));
}

std::string difference(std::span<const uint8_t> left, size_t left_rank, std::span<const uint8_t> right,
                       size_t right_rank) {
  std::vector<Spec> lefts, rights;
  const auto told = [](const Spec* spec) { return spec == nullptr ? "absent" : spec->describe(); };
  if (!decode(left, &lefts) || !decode(right, &rights)) return "what they registered can't be told";
  for (size_t i = 0; i < lefts.size() || i < rights.size(); ++i) {
    const Spec* a = i < lefts.size() ? &lefts[i] : nullptr;
    const Spec* b = i < rights.size() ? &rights[i] : nullptr;
    if (a != nullptr && b != nullptr && *a == *b) continue;
    if (a != nullptr && b != nullptr && a->key != b->key) (a->key < b->key ? b : a) = nullptr;
    return fmt::format("key '{}' is {} on rank {} and {} on rank {}", (a != nullptr ? a : b)->key, told(a),
                       left_rank, told(b), right_rank);
  }
  return "what they registered can't be told";
}

size_t checked_bytes(const Spec& spec) {
  if (spec.key.empty() || spec.key.size() > kMaxKey) {
    throw Error(HVD_INVALID, fmt::format("state key '{}' has {} bytes: expected 1 to {}",
                                         spec.key.substr(0, 64), spec.key.size(), kMaxKey));
  }
  if (spec.detail.size() > kMaxDetail) {
    unfit(spec, fmt::format("its detail has {} bytes: expected at most {}", spec.detail.size(), kMaxDetail));
  }
  if (spec.kind == VariableKind::kObject) return 0;
  if (spec.kind == VariableKind::kTensor) return tensor_bytes(spec);
  if (spec.kind == VariableKind::kShard) {
    tensor_bytes(spec);
    return 0;
  }
  const auto size = static_cast<size_t>(spec.shape.at(0));
  if (size < 1 || size > kMaxValue) {
    unfit(spec, fmt::format("the value has {} bytes: expected 1 to {}", size, kMaxValue));
  }
  return size;
}

void encode(const Spec& spec, std::vector<uint8_t>* bytes) {
  put(bytes, static_cast<uint8_t>(spec.key.size()));
  bytes->insert(bytes->end(), spec.key.begin(), spec.key.end());
  put(bytes, static_cast<uint8_t>(spec.kind));
  put(bytes, spec.dtype);
  put(bytes, static_cast<uint8_t>(spec.shape.size()));
  for (int64_t extent : spec.shape) put(bytes, extent);
  put(bytes, static_cast<uint8_t>(spec.detail.size()));
  bytes->insert(bytes->end(), spec.detail.begin(), spec.detail.end());
}

bool decode(std::span<const uint8_t> bytes, std::vector<Spec>* specs) {
  specs->clear();
  while (!bytes.empty()) {
    if (!decode_one(&bytes, &specs->emplace_back())) return false;
  }
  return true;
}

Digest Copy::digest_object() {
  pieces.fit(object.size());
  for (size_t i = 0; i < pieces.digests.size(); ++i) {
    const size_t at = i * kPiece;
    pieces.digests[i] = hvd::digest(object.data() + at, std::min(kPiece, object.size() - at));
    pieces.marks[i] = Pieces::kKnown;
  }
  return pieces.content();
}

Digest Saved::content() const {
  Bytes whole;
  for (const Extent& part : parts) whole.append(part.data, part.size);
  return content_digest(whole.data(), whole.size());
}

std::optional<Digest> Variable::held_still() const {
  if (is_object()) return is_lent_until_end() ? std::optional(saved.content()) : std::nullopt;
  if (on_device() || spec.kind != VariableKind::kTensor) return {};
  return content_digest(live, bytes);
}

Status Variable::run_save() {
  saved.written.clear();
  saved.parts.clear();
  saved.size = 0;
  saved.lent = saved.for_call = false;
  Sink sink{&saved};
  Status status = called(spec.key, "save", [&] { return save(&write, static_cast<void*>(&sink)); });
  if (!status.ok()) return status;
  if (sink.null_data) {
    return {HVD_CALLBACK_FAILED,
            fmt::format("save callback of state key '{}' gave NULL: expected data", spec.key)};
  }
  if (sink.out_of_memory) {
    return {HVD_INTERNAL,
            fmt::format("out of memory: state key '{}' gave more than {} bytes", spec.key, saved.size)};
  }
  const uint8_t* written = saved.written.data();
  for (Extent& part : saved.parts) {
    if (part.data != nullptr) continue;
    part.data = written;
    written += part.size;
  }
  return {};
}

Status Variable::make_room(const Copy& into, std::vector<std::span<uint8_t>>* fresh) {
  if (!saved.lent || into.object.capacity() >= saved.size) return {};
  try {
    saved.room.resize(saved.size);
    fresh->emplace_back(saved.room.data(), saved.size);
  } catch (const std::exception&) {  // bad_alloc, length_error
    return {HVD_INTERNAL,
            fmt::format("out of memory: {} bytes for the copy of state key '{}'", saved.size, spec.key)};
  }
  return {};
}

void Variable::append_saved(Copy* into, std::vector<PieceCopy>* list) {
  into->pieces.reserve(saved.size);
  if (!saved.lent) {  // written here already: it is only to be digested
    append_pieces(nullptr, saved.written.data(), saved.size, &into->pieces, list);
    return;
  }
  uint8_t* const to = saved.room.empty() ? into->object.data() : saved.room.data();
  append_pieces(to, saved.parts, &into->pieces, &saved.pieces, list);
}

// There is memory for all of it already.
void Variable::take_saved(Copy* into) noexcept {
  if (!saved.lent) {
    into->object.swap(saved.written);
  } else {
    if (!saved.room.empty()) {
      into->object = std::exchange(saved.room, {});
      into->pieces.fit(0);
    }
    into->object.resize(saved.size);
  }
  into->pieces.fit(saved.size);
}

Status Variable::run_load(std::span<const uint8_t> data) const {
  static constexpr uint8_t kNothing = 0;  // load may look at the pointer even if there is nothing behind it
  return called(spec.key, "load", [&] {
    return load(static_cast<const void*>(data.empty() ? &kNothing : data.data()), data.size());
  });
}

}  // namespace hvd::state

// Saves, restores and digests one variable.
#include "state/variable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>

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
  std::vector<uint8_t>* bytes;
  bool out_of_memory = false;
  bool null_data = false;
};

int32_t write(void* context, const void* data, size_t size) {
  auto* sink = static_cast<Sink*>(context);
  if (sink->out_of_memory) return 1;
  if (size == 0) return 0;
  if (data == nullptr) {
    sink->null_data = true;
    return 1;
  }
  try {
    const auto* p = static_cast<const uint8_t*>(data);
    sink->bytes->insert(sink->bytes->end(), p, p + size);
  } catch (const std::exception&) { sink->out_of_memory = true; }
  return sink->out_of_memory ? 1 : 0;
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

std::string Spec::describe() const {
  if (kind == VariableKind::kObject) return detail.empty() ? "object" : detail;
  if (kind == VariableKind::kValue) return fmt::format("value of {} bytes", shape.empty() ? 0 : shape[0]);
  if (kind == VariableKind::kShard) {
    return fmt::format("shards of {}[{}] with {}", dtype_name(dtype), fmt::join(shape, ","), detail);
  }
  return fmt::format("tensor {}[{}]", dtype_name(dtype), fmt::join(shape, ","));
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

Status Variable::run_save() {
  fresh.clear();
  Sink sink{&fresh};
  Status status = called(spec.key, "save", [&] { return save(&write, static_cast<void*>(&sink)); });
  if (!status.ok()) return status;
  if (sink.null_data) {
    return {HVD_CALLBACK_FAILED,
            fmt::format("save callback of state key '{}' wrote from NULL: expected data", spec.key)};
  }
  if (sink.out_of_memory) {
    return {HVD_INTERNAL,
            fmt::format("out of memory: state key '{}' wrote more than {} bytes", spec.key, fresh.size())};
  }
  return {};
}

Status Variable::run_load(std::span<const uint8_t> data) const {
  static constexpr uint8_t kNothing = 0;  // load may look at the pointer even if there is nothing behind it
  return called(spec.key, "load", [&] {
    return load(static_cast<const void*>(data.empty() ? &kNothing : data.data()), data.size());
  });
}

}  // namespace hvd::state

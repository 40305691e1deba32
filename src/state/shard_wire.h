// Plain words that ranks tell each other about shards. Members of a job share one byte order.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/status.h"
#include "collective/engine.h"

namespace hvd::state {

template <class T>
void put(std::vector<uint8_t>* bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* p = reinterpret_cast<const uint8_t*>(&value);
  bytes->insert(bytes->end(), p, p + sizeof(value));
}

/// False if there are not so many bytes left.
template <class T>
bool take(std::span<const uint8_t>* bytes, T* value) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes->size() < sizeof(T)) return false;
  std::memcpy(value, bytes->data(), sizeof(T));
  *bytes = bytes->subspan(sizeof(T));
  return true;
}

inline Status unreadable(const char* what) {
  return {HVD_INTERNAL, std::string("state: what other ranks say of ") + what + " can't be read"};
}

inline collective::Tensor bytes_of(const void* data, size_t size) {
  return {const_cast<void*>(data), HVD_DTYPE_UINT8, {static_cast<int64_t>(size)}};
}

/// From one rank to others, in place: this rank is one of them.
inline collective::Submission one_to_some(std::string name, int32_t source, std::vector<int32_t> members,
                                          uint8_t* data, size_t size) {
  collective::Submission submission;
  submission.name = std::move(name);
  submission.kind = collective::Kind::kBroadcast;
  submission.root = source;
  submission.members = std::move(members);
  submission.outputs = {bytes_of(data, size)};
  return submission;
}

}  // namespace hvd::state

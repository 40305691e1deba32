// Checks operations and tensors that the core hands to a module.
#include "modules/kit/checks.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "modules/kit/failure.h"
#include "modules/kit/module.h"

namespace hvdkit {

void check_group(const hvd_backend_group* group) {
  if (group == nullptr) throw Failure(HVD_INVALID, "the group is NULL");
  if (group->size < 1 || group->rank < 0 || group->rank >= group->size) {
    throw Failure(HVD_INVALID, "rank " + std::to_string(group->rank) + " of " + std::to_string(group->size));
  }
}

void check_message(int32_t destination, int rank, int size, const void* data, size_t bytes) {
  if (destination < 0 || destination >= size || destination == rank) {
    throw Failure(HVD_INVALID, "a message to rank " + std::to_string(destination) + " from rank " +
                                   std::to_string(rank) + " of " + std::to_string(size));
  }
  if (bytes > kMaxMessage || (data == nullptr && bytes > 0)) {
    throw Failure(HVD_INVALID, "a message of " + std::to_string(bytes) + " bytes: expected at most " +
                                   std::to_string(kMaxMessage) + ", not NULL");
  }
}

void give_address(const void* blob, size_t bytes, void* data, size_t* size) {
  const size_t room = std::exchange(*size, bytes);
  if (room < bytes) {
    throw Failure(HVD_INVALID,
                  "the address has " + std::to_string(bytes) + " bytes, the room " + std::to_string(room));
  }
  std::memcpy(data, blob, bytes);
}

void give_text(const std::string& line, char* text, size_t size) noexcept {
  if (text == nullptr || size == 0) return;
  const size_t length = std::min(size - 1, line.size());
  std::memcpy(text, line.data(), length);
  text[length] = 0;
}

hvd_backend_description description_of(const char* name, const char* version, hvd_memory memory) {
  hvd_backend_description d{};
  d.struct_size = sizeof(d);
  d.name = name;
  d.version = version;
  d.memories = uint64_t{1} << memory;
  for (int dtype = HVD_DTYPE_UINT8; dtype <= HVD_DTYPE_BOOL; ++dtype) d.dtypes |= uint64_t{1} << dtype;
  for (int c = HVD_COLLECTIVE_BROADCAST; c <= HVD_COLLECTIVE_ALLTOALL; ++c) d.collectives |= uint64_t{1} << c;
  return d;
}

Clock::time_point deadline_of(int64_t timeout_ns) {
  constexpr int64_t kLong = int64_t{24} * 3600 * HVD_SECOND;
  return Clock::now() + std::chrono::nanoseconds(std::clamp<int64_t>(timeout_ns, HVD_MILLISECOND, kLong));
}

}  // namespace hvdkit

#include "modules/kit/generations.h"

#include "modules/kit/links.h"

namespace hvdkit {

void check_group(const hvd_backend_group& group) {
  if (group.size < 1 || group.rank < 0 || group.rank >= group.size) {
    throw Failure(HVD_INVALID, "rank " + std::to_string(group.rank) + " of " + std::to_string(group.size));
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

}  // namespace hvdkit

// What C calls of a module bring is checked here, and what they are given back is copied. All throw Failure.
#pragma once

#include <string>

#include "hvd/backend.h"

namespace hvdkit {

constexpr size_t kMaxMessage = size_t{1} << 20;  // bytes, as send_message promises

void check_group(const hvd_backend_group* group);
inline void check_group(const hvd_backend_group& group) { check_group(&group); }
void check_message(int32_t destination, int rank, int size, const void* data, size_t bytes);
/// The result of `address`. Sets *size also where the room is too small.
void give_address(const void* blob, size_t bytes, void* data, size_t* size);
/// The result of `detail`: NUL-terminated, cut to `size`.
void give_text(const std::string& line, char* text, size_t size) noexcept;

}  // namespace hvdkit

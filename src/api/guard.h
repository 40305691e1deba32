// The boundary: no exception crosses it (contract 10), every failure fills in the caller's error.
#pragma once

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace hvd::api {

/// Fills in a caller's error unless it is HVD_OK.
hvd_status told(const Status& status, hvd_error* error) noexcept;
/// The same for the exception that is being handled.
[[gnu::cold]] hvd_status told_caught(hvd_error* error) noexcept;

/// Runs fn, which returns a hvd::Status or nothing, and turns what it throws into a status.
template <class Function>
hvd_status guarded(hvd_error* error, Function&& fn) noexcept {
  try {
    if constexpr (std::is_void_v<decltype(fn())>) {
      fn();
      return HVD_OK;
    } else {
      return told(fn(), error);
    }
  } catch (...) { return told_caught(error); }
}

template <class T>
T& required(T* pointer, const char* name) {
  if (pointer == nullptr) throw Error(HVD_INVALID, std::string(name) + " is NULL");
  return *pointer;
}

/// A C string that must be there and not be empty.
inline std::string required_text(const char* text, const char* name) {
  if (required(text, name) == 0) throw Error(HVD_INVALID, std::string(name) + " is empty");
  return text;
}

/// A caller's time-out: 0 is `fallback`. Throws Error(HVD_INVALID) if it is negative or too long.
Duration timeout_of(int64_t timeout_ns, Duration fallback);

/// Copies a result into a caller's struct, no further than the struct_size that the caller set.
template <class Struct>
void copy_out(Struct* target, Struct value, const char* name) {
  const size_t size = required(target, name).struct_size;
  if (size < sizeof(size_t)) {
    throw Error(HVD_INVALID, std::string(name) + "->struct_size is " + std::to_string(size) +
                                 ": expected sizeof(" + name + ")");
  }
  value.struct_size = size;
  std::memcpy(static_cast<void*>(target), &value, size < sizeof(Struct) ? size : sizeof(Struct));
}

/// Reads a caller's struct, no further than its struct_size; what lies beyond is zero.
template <class Struct>
Struct copy_in(const Struct* source, const char* name) {
  Struct value{};
  const size_t size = required(source, name).struct_size;
  if (size < sizeof(size_t)) {
    throw Error(HVD_INVALID, std::string(name) + "->struct_size is " + std::to_string(size) +
                                 ": expected sizeof(" + name + ")");
  }
  if (size >= sizeof(Struct)) return *source;
  std::memcpy(static_cast<void*>(&value), source, size);
  return value;
}

/// A list into a caller's array: *count is its room and then the length; without an array, the length alone.
template <class T>
void copy_list(const std::vector<T>& list, T* target, size_t* count) {
  if (target != nullptr) {
    if (*count < list.size()) {
      throw Error(HVD_INVALID, "*count is " + std::to_string(*count) + ": expected room for " +
                                   std::to_string(list.size()) + " or more");
    }
    std::copy(list.begin(), list.end(), target);
  }
  *count = list.size();
}

template <size_t N>
void copy_text(char (&target)[N], const std::string& text) {
  const size_t length = text.size() < N - 1 ? text.size() : N - 1;
  std::memcpy(target, text.data(), length);
  target[length] = 0;
}

}  // namespace hvd::api

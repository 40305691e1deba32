// The status of an exception that can't go on: in a thread of the library, or in a C function.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "base/status.h"

namespace hvd {

/// HVD_INTERNAL and what the exception says, when `what` was tried. Without memory for that it says so: it
/// throws nothing.
inline Status internal_status(const std::exception& error, const char* what = nullptr) noexcept {
  constexpr const char* kNoMemory = "out of memory";  // so short that a string needs none
  try {
    const bool starved = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
    std::string text = starved ? kNoMemory : error.what();
    if (what != nullptr) text = std::string(what) + ": " + text;
    return {HVD_INTERNAL, std::move(text)};
  } catch (const std::exception&) { return {HVD_INTERNAL, kNoMemory}; }
}

}  // namespace hvd

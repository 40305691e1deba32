// The options that the core hands to `open`, by key.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "hvd/backend.h"

namespace hvdkit {

class Options {
 public:
  Options() = default;
  /// Copies the list. Throws Failure(HVD_INVALID) on an entry without key or value.
  Options(const hvd_backend_option* options, size_t count);

  /// The value of `key`, or `fallback` if the core gave none.
  std::string text(const std::string& key, const std::string& fallback = "") const;
  /// 0, 1, false or true. These two throw Failure(HVD_INVALID) that names the key, the value and what was
  /// expected.
  bool flag(const std::string& key, bool fallback) const;
  uint64_t integer(const std::string& key, uint64_t fallback, uint64_t least, uint64_t most) const;

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace hvdkit

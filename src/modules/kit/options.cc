// Reads and checks the options that open was given.
#include "modules/kit/options.h"

#include <charconv>
#include <limits>

#include "modules/kit/failure.h"

namespace hvdkit {
namespace {

[[noreturn]] void invalid(const std::string& key, const std::string& value, const std::string& expected) {
  throw Failure(HVD_INVALID, "option " + key + " is '" + value + "': expected " + expected);
}

}  // namespace

Options::Options(const hvd_backend_option* options, size_t count) {
  if (options == nullptr && count > 0) throw Failure(HVD_INVALID, "the list of options is NULL");
  for (size_t i = 0; i < count; ++i) {
    if (options[i].key == nullptr || options[i].value == nullptr) {
      throw Failure(HVD_INVALID, "option " + std::to_string(i) + " has no key or no value");
    }
    values_[options[i].key] = options[i].value;
  }
}

std::string Options::text(const std::string& key, const std::string& fallback) const {
  const auto found = values_.find(key);
  return found != values_.end() ? found->second : fallback;
}

bool Options::flag(const std::string& key, bool fallback) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return fallback;
  const std::string& value = found->second;
  if (value == "1" || value == "true") return true;
  if (value != "0" && value != "false") invalid(key, value, "0 or 1");
  return false;
}

uint64_t Options::integer(const std::string& key, uint64_t fallback, uint64_t least, uint64_t most) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return fallback;
  const std::string& text = found->second;
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    const std::string range = most == std::numeric_limits<uint64_t>::max()
                                  ? "of at least " + std::to_string(least)
                                  : "from " + std::to_string(least) + " to " + std::to_string(most);
    invalid(key, text, "an integer " + range);
  }
  return value;
}

}  // namespace hvdkit

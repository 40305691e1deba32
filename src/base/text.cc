// Checks UTF-8, cleans lines for the log, shows durations.
#include "base/text.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

namespace hvd {
namespace {

/// Bytes of the character that begins at `at`, or 0 if there is none.
size_t length_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xc2 && first < 0xe0   ? 2
                        : first >= 0xe0 && first < 0xf0 ? 3
                        : first >= 0xf0 && first < 0xf5 ? 4
                                                        : 0;
  if (length == 0 || text.size() - at < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = byte(at + 1);
  if (first == 0xe0 && second < 0xa0) return 0;  // longer than need be
  if (first == 0xed && second > 0x9f) return 0;  // a surrogate
  if (first == 0xf0 && second < 0x90) return 0;
  if (first == 0xf4 && second > 0x8f) return 0;  // beyond U+10FFFF
  return length;
}

bool is_control(std::string_view character) {
  const auto first = static_cast<uint8_t>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return first == 0xc2 && static_cast<uint8_t>(character[1]) < 0xa0;  // C1: U+0080 to U+009F
}

}  // namespace

size_t find_bad_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = length_at(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

std::string printable(std::string_view text, size_t most) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t length = length_at(text, at);
    const std::string_view character = text.substr(at, length == 0 ? 1 : length);
    const std::string_view shown = length == 0 ? "?" : is_control(character) ? " " : character;
    if (result.size() + shown.size() > most) break;
    result += shown;
    at += character.size();
  }
  return result;
}

std::string seconds_text(Duration duration) {
  const double seconds = to_seconds(duration);
  return std::abs(seconds) < 100 ? fmt::format("{:.3g}", seconds) : fmt::format("{:.0f}", seconds);
}

}  // namespace hvd

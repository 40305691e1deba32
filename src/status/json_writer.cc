// Commas, escapes and numbers of JSON.
#include "status/json_writer.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "base/text.h"

namespace hvd::status {

void JsonWriter::put(std::string_view text) {
  text_ += '"';
  while (!text.empty()) {
    // What is no UTF-8 is shown as the character that stands for such bytes.
    const size_t bad = find_bad_utf8(text);
    for (const char c : text.substr(0, bad)) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text_ += '\\';
        text_ += c;
      } else if (byte < 0x20 || byte == 0x7f) {
        fmt::format_to(std::back_inserter(text_), "\\u{:04x}", byte);
      } else {
        text_ += c;
      }
    }
    if (bad == std::string_view::npos) break;
    text_ += "\\ufffd";
    text.remove_prefix(bad + 1);
  }
  text_ += '"';
}

void JsonWriter::begin(std::string_view key) {
  if (!first_) text_ += ',';
  first_ = false;
  if (key.empty()) return;
  put(key);
  text_ += ':';
}

JsonWriter& JsonWriter::open(char bracket, std::string_view key) {
  begin(key);
  text_ += bracket;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  text_ += bracket;
  first_ = false;
  return *this;
}

JsonWriter& JsonWriter::field(std::string_view key, std::string_view text) {
  begin(key);
  put(text);
  return *this;
}

JsonWriter& JsonWriter::field(std::string_view key, bool value) {
  begin(key);
  text_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::field(std::string_view key, int64_t value) {
  begin(key);
  text_ += std::to_string(value);
  return *this;
}

JsonWriter& JsonWriter::field(std::string_view key, uint64_t value) {
  begin(key);
  text_ += std::to_string(value);
  return *this;
}

JsonWriter& JsonWriter::field(std::string_view key, double value) {
  begin(key);
  if (std::isfinite(value)) {
    fmt::format_to(std::back_inserter(text_), "{}", value);
  } else {
    text_ += "null";
  }
  return *this;
}

}  // namespace hvd::status

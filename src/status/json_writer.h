// Writes JSON (RFC 8259) piece by piece; commas come by themselves.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hvd::status {

class JsonWriter {
 public:
  JsonWriter& begin_object(std::string_view key = {}) { return open('{', key); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array(std::string_view key = {}) { return open('[', key); }
  JsonWriter& end_array() { return close(']'); }

  JsonWriter& field(std::string_view key, std::string_view text);
  JsonWriter& field(std::string_view key, const char* text) { return field(key, std::string_view(text)); }
  JsonWriter& field(std::string_view key, bool value);
  JsonWriter& field(std::string_view key, int32_t value) { return field(key, int64_t{value}); }
  JsonWriter& field(std::string_view key, int64_t value);
  JsonWriter& field(std::string_view key, uint64_t value);
  /// null where the number is none that JSON has.
  JsonWriter& field(std::string_view key, double value);

  const std::string& text() const { return text_; }

 private:
  JsonWriter& open(char bracket, std::string_view key);
  JsonWriter& close(char bracket);
  void begin(std::string_view key);
  void put(std::string_view text);

  std::string text_;
  bool first_ = true;  // of the object or array that is open
};

}  // namespace hvd::status

// Records of a timeline to text in a file. One thread at a time.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "timeline/timeline.h"

namespace hvd {

/// A record in memory: this, the name, then each field.
struct Timeline::Record {
  Type type;
  TimelineRow row{};
  uint8_t fields = 0;
  uint32_t name_size = 0;
  const char* kind = nullptr;
  int64_t at[4] = {0, 0, 0, 0};  // nanoseconds of CLOCK_MONOTONIC
};

/// A field in memory: this, then text_size bytes of text.
struct TimelineFieldHead {
  const char* key;
  int64_t number;
  int64_t text_size;  // -1: it is the number
};

/// Appends `text` as a JSON string with its quotes. What is no UTF-8 becomes U+FFFD.
void append_json(fmt::memory_buffer* out, std::string_view text);

class Timeline::Writer {
 public:
  /// Throws Error(HVD_UNAVAILABLE) and Error(HVD_INVALID).
  Writer(std::string file, uint64_t worker, std::string host);
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer();

  /// Failures are kept, not thrown: see failure().
  void write(std::span<const uint8_t> records, uint64_t dropped);
  void finish();
  /// Why something could not be written.
  const std::optional<Status>& failure() const { return failure_; }
  const std::string& file() const { return file_; }

 private:
  class Reader;

  void event(const char* phase, uint64_t row, int64_t at, std::optional<int64_t> length = std::nullopt);
  void named(std::string_view name, const char* category);
  void arguments(Reader& reader, unsigned fields, const char* kind = nullptr);
  void close_event() { put("}"); }
  void put(std::string_view text) { text_.append(text.data(), text.data() + text.size()); }

  void clock(int64_t at);
  void place(const Record& record, Reader& reader);
  void row_name(uint64_t row, std::string_view name, int64_t at);
  void operation(const Record& record, Reader& reader, std::string_view name);
  std::optional<uint64_t> row_for(int64_t began, int64_t ended);
  void flush();

  const std::string file_;
  const uint64_t worker_;
  const std::string host_;
  int fd_ = -1;
  bool first_ = true;
  fmt::memory_buffer text_;
  int64_t written_ = 0;             // bytes of the file that are whole events
  std::vector<int64_t> rows_ends_;  // of each row of operations: when the last one was complete
  uint64_t crowded_ = 0;            // operations for which there was no row
  std::optional<Status> failure_;
};

}  // namespace hvd

// A snapshot as text for people and programs. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "status/snapshot.h"

namespace hvd::status {

enum class Format : int32_t { kText, kJson, kOpenMetrics, kLine };

/// "text", "json", "openmetrics", "line".
std::optional<Format> format_named(std::string_view name);

/// "new", "forming", "running", "ending", "succeeded", "failed".
const char* phase_name(hvd_phase phase);

std::string describe(const Snapshot& snapshot, Format format);

std::string to_text(const Snapshot& snapshot);
std::string to_json(const Snapshot& snapshot);
std::string to_openmetrics(const Snapshot& snapshot);
/// One line without a newline, for the last line of a terminal.
std::string to_line(const Snapshot& snapshot);

}  // namespace hvd::status

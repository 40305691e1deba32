// The snapshot as a page of text, and what the formats and phases are called.
#include <fmt/format.h>

#include "status/describe.h"

namespace hvd::status {
namespace {

constexpr std::string_view kFormats[] = {"text", "json"};

}  // namespace

std::optional<Format> format_named(std::string_view name) {
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    if (name == kFormats[i]) return static_cast<Format>(i);
  }
  return std::nullopt;
}

const char* phase_name(hvd_phase phase) {
  constexpr const char* kNames[] = {"new", "forming", "running", "ending", "succeeded", "failed"};
  return phase >= 0 && static_cast<size_t>(phase) < std::size(kNames) ? kNames[phase] : "unknown";
}

std::string describe(const Snapshot& snapshot, Format format) {
  switch (format) {
    case Format::kText: return to_text(snapshot);
    case Format::kJson: return to_json(snapshot);
  }
  return "";
}

std::string to_text(const Snapshot& s) {
  std::string text = fmt::format("job {}: {}", s.job, phase_name(s.phase));
  if (!s.sentence.empty()) text += fmt::format(" ({})", s.sentence);
  text +=
      fmt::format("\ngeneration {}, {} members, {} workers alive, {} slots, {} resets, {} hosts blocked\n",
                  s.generation, s.size, s.workers, s.slots, s.resets, s.hosts_blocked);
  if (!s.stall.empty()) text += fmt::format("stalled: {}\n", s.stall);
  return text;
}

}  // namespace hvd::status

// The snapshot as text for people, and what the formats and phases are called.
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "status/describe.h"

namespace hvd::status {
namespace {

constexpr std::string_view kFormats[] = {"text", "json", "openmetrics", "line"};

std::string percent(double ratio) { return ratio < 0 ? "-" : fmt::format("{:.1f} %", ratio * 100); }

Duration total_of(const Recovery& recovery) { return recovery.phases[static_cast<size_t>(Phase::kTotal)]; }

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
    case Format::kOpenMetrics: return to_openmetrics(snapshot);
    case Format::kLine: return to_line(snapshot);
  }
  return "";
}

std::string to_line(const Snapshot& s) {
  std::string line = fmt::format("{} | generation {} | {} of {} workers | {:.3g} commits/s | goodput {}",
                                 phase_name(s.phase), s.generation, s.size, s.workers, s.commits_per_second,
                                 percent(s.goodput()));
  if (s.last_recovery > Duration(0))
    line += fmt::format(" | last recovery {} s", seconds_text(s.last_recovery));
  if (s.stalled > 0) line += fmt::format(" | {} stalled", s.stalled);
  if (!s.sentence.empty()) line += " | " + s.sentence;
  return printable(line);
}

std::string to_text(const Snapshot& s) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "job {}: {}{}\n", s.job, phase_name(s.phase),
                 s.sentence.empty() ? "" : ", " + s.sentence);
  fmt::format_to(out, "generation {}, {} members, {} workers alive, {} slots, {} resets, {} hosts blocked\n",
                 s.generation, s.size, s.workers, s.slots, s.resets, s.hosts_blocked);
  fmt::format_to(out, "goodput {} of {} s, {:.3g} commits/s, {} bytes synced\n", percent(s.goodput()),
                 seconds_text(s.wall), s.commits_per_second, s.sync_bytes);
  if (!s.stall.empty()) fmt::format_to(out, "stalled: {}\n", s.stall);
  for (const HostView& host : s.hosts) {
    if (!host.blocked && !host.drained) continue;
    fmt::format_to(out, "host {}: {}{}\n", host.name, host.drained ? "drained" : "blocked",
                   host.blocked_for ? fmt::format(" for {} s", seconds_text(*host.blocked_for)) : "");
  }
  if (!s.all.empty()) {
    fmt::format_to(out, "\n{:>5} {:>7} {:<24} {:<11} {:>9} {:>10} {:>8} {:>9}\n", "RANK", "WORKER",
                   "HOST:SLOT", "STATE", "REVISION", "COMMITS/S", "HEARD", "RECOVERY");
  }
  for (const WorkerView& w : s.all) {
    fmt::format_to(out, "{:>5} {:>7} {:<24} {:<11} {:>9} {:>10.3g} {:>8} {:>9}\n",
                   w.rank < 0 ? "-" : std::to_string(w.rank), w.id, fmt::format("{}:{}", w.host, w.slot),
                   kWorkerStateNames[static_cast<size_t>(w.state)], w.revision, w.commits_per_second,
                   w.silence ? fmt::format("{:.1f} s", to_seconds(*w.silence)) : "-",
                   w.last ? seconds_text(total_of(*w.last)) + " s" : "-");
  }
  if (!s.generations.empty()) fmt::format_to(out, "\nGENERATION  SIZE  SECONDS  RECOVERY  BECAUSE\n");
  for (auto g = s.generations.rbegin(); g != s.generations.rend() && g - s.generations.rbegin() < 10; ++g) {
    fmt::format_to(out, "{:>10} {:>5} {:>8} {:>9}  {}\n", g->number, g->size,
                   seconds_text(g->ended.value_or(s.at) - g->formed),
                   g->recovery ? seconds_text(total_of(*g->recovery)) + " s" : "-",
                   !g->reason.empty() ? g->reason : kCauseNames[static_cast<size_t>(g->cause)]);
  }
  return text;
}

}  // namespace hvd::status

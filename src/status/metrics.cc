// The snapshot in the OpenMetrics text format, version 1.0.0. No label per worker: what is counted does not
// grow with a job's size or its age.
#include <fmt/format.h>

#include <iterator>

#include "status/describe.h"

namespace hvd::status {
namespace {

class Metrics {
 public:
  void family(const char* name, const char* type, const char* unit, const char* help) {
    fmt::format_to(out(), "# TYPE {} {}\n", name, type);
    if (*unit != '\0') fmt::format_to(out(), "# UNIT {} {}\n", name, unit);
    fmt::format_to(out(), "# HELP {} {}\n", name, help);
  }
  template <class Number>
  void sample(std::string_view name, Number value) {
    fmt::format_to(out(), "{} {}\n", name, value);
  }
  template <class Number>
  void sample(std::string_view name, const char* label, std::string_view text, Number value) {
    fmt::format_to(out(), "{}{{{}=\"{}\"}} {}\n", name, label, text, value);
  }
  template <class Number>
  void gauge(const char* name, const char* help, Number value) {
    family(name, "gauge", "", help);
    sample(name, value);
  }
  void histogram(const char* name, const char* phase, const Histogram& h) {
    uint64_t below = 0;
    for (size_t i = 0; i < h.counts.size(); ++i) {
      below += h.counts[i];
      fmt::format_to(out(), "{}_bucket{{phase=\"{}\",le=\"{}\"}} {}\n", name, phase,
                     i < Histogram::kBounds.size() ? le(Histogram::kBounds[i]) : "+Inf", below);
    }
    fmt::format_to(out(), "{}_count{{phase=\"{}\"}} {}\n{}_sum{{phase=\"{}\"}} {}\n", name, phase, below,
                   name, phase, h.sum);
  }
  std::string take() {
    text_ += "# EOF\n";
    return std::move(text_);
  }

 private:
  /// OpenMetrics wants a bound to look like a float.
  static std::string le(double bound) {
    std::string text = fmt::format("{}", bound);
    return text.find('.') == std::string::npos ? text + ".0" : text;
  }
  std::back_insert_iterator<std::string> out() { return std::back_inserter(text_); }
  std::string text_;
};

}  // namespace

std::string to_openmetrics(const Snapshot& s) {
  Metrics m;
  m.family("hvd_build", "info", "", "Version of libhvd that the driver runs.");
  m.sample("hvd_build_info", "version", HVD_VERSION_STRING, 1);
  m.family("hvd_job_phase", "stateset", "", "What the job is doing.");
  for (hvd_phase phase = HVD_PHASE_NEW; phase <= HVD_PHASE_FAILED; ++phase)
    m.sample("hvd_job_phase", "hvd_job_phase", phase_name(phase), s.phase == phase ? 1 : 0);
  m.family("hvd_workers", "gauge", "", "Workers whose processes live, by what they are doing.");
  std::array<uint64_t, kWorkerStates> states{};
  for (const WorkerView& worker : s.all) ++states[static_cast<size_t>(worker.state)];
  for (size_t i = 0; i < kWorkerStates; ++i)
    m.sample("hvd_workers", "state", kWorkerStateNames[i], states[i]);
  m.gauge("hvd_generation_size", "Living members of the current generation.", s.size);
  m.gauge("hvd_slots", "Slots that may be used now.", s.slots);
  m.gauge("hvd_generation", "Number of the current generation; 0 before the first.", s.generation);
  m.family("hvd_resets", "counter", "", "Generations formed after the first, by why the one before ended.");
  for (const Cause cause : {Cause::kPeerLost, Cause::kHostsUpdated}) {
    const auto i = static_cast<size_t>(cause);
    m.sample("hvd_resets_total", "cause", kCauseNames[i], s.resets_by_cause[i]);
  }
  m.family(
      "hvd_recovery_seconds", "histogram", "seconds",
      "Phases of recoveries, one observation for each worker that came through one; total is their whole time.");
  for (size_t i = 0; i < kPhases; ++i) m.histogram("hvd_recovery_seconds", kPhaseNames[i], s.recoveries[i]);
  m.family("hvd_goodput_ratio", "gauge", "ratio", "Time in training that commits have kept, over wall time.");
  if (s.goodput() >= 0) m.sample("hvd_goodput_ratio", s.goodput());
  m.family("hvd_commit_seconds", "summary", "seconds", "Time that workers have waited for commits.");
  m.sample("hvd_commit_seconds_count", s.commits);
  m.sample("hvd_commit_seconds_sum", s.commit_seconds);
  m.family("hvd_sync_bytes", "counter", "bytes", "Payload of states that workers have sent and received.");
  m.sample("hvd_sync_bytes_total", s.sync_bytes);
  m.gauge("hvd_hosts_blocked", "Hosts that fail again and again and get no worker now.", s.hosts_blocked);
  m.gauge("hvd_stalled_operations", "Operations that wait for ranks for longer than stall_warning.",
          s.stalled);
  m.gauge("hvd_driver_term", "Term of the driver: each one that takes over has a higher one.", s.term);
  return m.take();
}

}  // namespace hvd::status

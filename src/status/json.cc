// The snapshot as JSON: docs/observability.md says what each field means.
#include "status/describe.h"
#include "status/json_writer.h"

namespace hvd::status {
namespace {

double number(double value) { return value < 0 ? std::numeric_limits<double>::quiet_NaN() : value; }

double unix_seconds(const Snapshot& s, Time at) {
  return static_cast<double>(s.unix_ms) / 1e3 + to_seconds(at - s.at);
}

void put_recovery(JsonWriter& json, const std::optional<Recovery>& recovery) {
  if (!recovery) return;
  json.begin_object("recovery");
  for (size_t i = 0; i < kPhases; ++i)
    json.field(std::string(kPhaseNames[i]) + "_seconds", to_seconds(recovery->phases[i]));
  json.field("attempts", recovery->attempts).field("sync_bytes", recovery->sync_bytes).end_object();
}

}  // namespace

std::string to_json(const Snapshot& s) {
  JsonWriter json;
  json.begin_object();
  json.field("version", HVD_VERSION_STRING).field("job", s.job).field("phase", phase_name(s.phase));
  json.field("time", static_cast<double>(s.unix_ms) / 1e3);
  json.field("generation", s.generation).field("membership_epoch", s.epoch).field("term", s.term);
  json.field("size", s.size).field("workers_alive", s.workers).field("slots", s.slots);
  json.field("resets", s.resets).field("hosts_blocked", s.hosts_blocked);
  json.field("sentence", s.sentence).field("stall", s.stall).field("stalled_operations", s.stalled);
  json.field("wall_seconds", to_seconds(s.wall)).field("useful_seconds", number(s.useful));
  json.field("goodput", number(s.goodput())).field("commits_per_second", s.commits_per_second);
  json.field("commits", s.commits)
      .field("commit_seconds", s.commit_seconds)
      .field("sync_bytes", s.sync_bytes);
  json.begin_array("hosts");
  for (const HostView& host : s.hosts) {
    json.begin_object().field("name", host.name).field("slots", host.slots).field("failures", host.failures);
    json.field("blocked", host.blocked).field("drained", host.drained);
    if (host.blocked_for) json.field("blocked_for_seconds", to_seconds(*host.blocked_for));
    json.end_object();
  }
  json.end_array().begin_array("workers");
  for (const WorkerView& worker : s.all) {
    json.begin_object().field("worker", worker.id).field("host", worker.host).field("slot", worker.slot);
    json.field("rank", worker.rank).field("state", kWorkerStateNames[static_cast<size_t>(worker.state)]);
    json.field("revision", worker.revision).field("commits", worker.commits);
    json.field("commits_per_second", worker.commits_per_second);
    json.field("silent_seconds", worker.silence ? to_seconds(*worker.silence) : number(-1));
    put_recovery(json, worker.last);
    json.end_object();
  }
  json.end_array().begin_array("generations");
  for (const GenerationView& g : s.generations) {
    json.begin_object()
        .field("generation", g.number)
        .field("cause", kCauseNames[static_cast<size_t>(g.cause)]);
    json.field("reason", g.reason).field("size", g.size).field("formed", unix_seconds(s, g.formed));
    json.field("seconds", to_seconds(g.ended.value_or(s.at) - g.formed)).field("over", g.ended.has_value());
    json.field("reports", g.reports);
    put_recovery(json, g.recovery);
    json.end_object();
  }
  json.end_array().begin_array("log");
  for (const LogLine& line : s.log) {
    json.begin_object()
        .field("time", static_cast<double>(line.unix_ms) / 1e3)
        .field("text", line.text)
        .end_object();
  }
  json.end_array().end_object();
  return json.text() + "\n";
}

}  // namespace hvd::status

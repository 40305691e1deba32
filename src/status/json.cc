// The snapshot as JSON: docs/observability.md says what each field means.
#include "status/describe.h"
#include "status/json_writer.h"

namespace hvd::status {

std::string to_json(const Snapshot& s) {
  JsonWriter json;
  json.begin_object();
  json.field("version", HVD_VERSION_STRING).field("job", s.job).field("phase", phase_name(s.phase));
  json.field("generation", s.generation).field("membership_epoch", s.epoch);
  json.field("size", s.size).field("workers_alive", s.workers).field("slots", s.slots);
  json.field("resets", s.resets).field("hosts_blocked", s.hosts_blocked);
  json.field("sentence", s.sentence).field("stall", s.stall);
  json.end_object();
  return json.text() + "\n";
}

}  // namespace hvd::status

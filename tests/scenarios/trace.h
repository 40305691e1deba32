/* One JSON line per event on stdout, or in the FIFO HVD_TEST_SINK where stdout may go away, each written
 * by a single write(2), so that lines of several threads don't mix and none is lost when the process is
 * killed right after it. */
#ifndef HVD_TESTS_SCENARIOS_TRACE_H
#define HVD_TESTS_SCENARIOS_TRACE_H

#include <stdint.h>

/* Who prints: host, slot and worker as the launcher gave them; `attempt` counts the processes that this slot
 * has had. */
typedef struct identity {
  const char* directory; /* HVD_TEST_DIR: gates, claims and counters of this job */
  const char* host;
  const char* slot;
  const char* worker;
  int attempt;
  int sink; /* descriptor that events are written to */
} identity;

/* Reads the identity from the environment and counts this process as one more attempt of its slot. */
void identity_read(identity* who);

/* Prints {"ev": event, who, "t": CLOCK_MONOTONIC ns, <fields>}; `fields` is printf-like text of JSON members
 * or "". */
void trace(const identity* who, const char* event, const char* fields, ...)
    __attribute__((format(printf, 3, 4)));

/* Copies text as the inside of a JSON string; returns `out`. */
const char* json_text(const char* text, char* out, int size);

int64_t monotonic_ns(void);

/* Blocks until the harness has opened the gate `name`: a FIFO in the directory, open as long as it exists
 * and the harness holds its other end. Returns 0, or -1 after a minute. */
int gate_wait(const identity* who, const char* name);

#endif

/* Faults at named points. HVD_TEST_FAULTS is a comma-separated list of
 *   point:host/slot/rank/revision/step/try=action
 * where each field is a value or *. A fault fires once in the whole job, or at each match if its action
 * begins with '+'. Actions: kill, segv, stop, exit0, exit3, hang, error, leave, gate(name). */
#ifndef HVD_TESTS_SCENARIOS_FAULTS_H
#define HVD_TESTS_SCENARIOS_FAULTS_H

#include <stdint.h>

#include "trace.h"

enum { FAULT_NONE = 0, FAULT_ERROR = 1, FAULT_LEAVE = 2 };

/* Where the worker stands now. */
typedef struct position {
  int rank;
  uint64_t revision;
  int64_t step;
} position;

/* Does what a fault of `point` says. Returns FAULT_ERROR or FAULT_LEAVE where the caller has to act. */
int fault(const identity* who, const char* point, position at);

/* The same for points written log(text): `message` is a line of the library's log that contains text. */
void fault_on_log(const identity* who, const char* message, position at);

#endif

/* Reads HVD_TEST_FAULTS and does what it says. */
#define _GNU_SOURCE
#include "faults.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int field_matches(const char *pattern, const char *value) {
  return strcmp(pattern, "*") == 0 || strcmp(pattern, value) == 0;
}

static int place_matches(char *place, const identity *who, position at) {
  char values[6][64];
  snprintf(values[0], sizeof values[0], "%s", who->host);
  snprintf(values[1], sizeof values[1], "%s", who->slot);
  snprintf(values[2], sizeof values[2], "%d", at.rank);
  snprintf(values[3], sizeof values[3], "%llu", (unsigned long long)at.revision);
  snprintf(values[4], sizeof values[4], "%lld", (long long)at.step);
  snprintf(values[5], sizeof values[5], "%d", who->attempt);
  char *rest = NULL;
  char *field = strtok_r(place, "/", &rest);
  for (int i = 0; i < 6; ++i, field = strtok_r(NULL, "/", &rest)) {
    if (field == NULL || !field_matches(field, values[i])) return 0;
  }
  return 1;
}

/* The first in the whole job to ask for fault `index` gets it. */
static int claim(const identity *who, int index) {
  char path[4096];
  snprintf(path, sizeof path, "%s/fault.%d", who->directory, index);
  int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

static int act(const identity *who, const char *point, char *action, position at) {
  char text[300];
  trace(who, "fault", "\"point\":\"%s\",\"action\":\"%s\",\"rank\":%d,\"rev\":%llu,\"step\":%lld",
        json_text(point, text, sizeof text), action, at.rank, (unsigned long long)at.revision,
        (long long)at.step);
  if (strcmp(action, "kill") == 0) kill(getpid(), SIGKILL);
  if (strcmp(action, "segv") == 0) {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
  if (strcmp(action, "stop") == 0) kill(getpid(), SIGSTOP);
  if (strcmp(action, "exit0") == 0) _exit(0);
  if (strcmp(action, "exit3") == 0) _exit(3);
  if (strcmp(action, "hang") == 0) {
    for (;;) pause();
  }
  if (strncmp(action, "gate(", 5) == 0) {
    action[strcspn(action, ")")] = '\0';
    gate_wait(who, action + 5);
  }
  if (strcmp(action, "error") == 0) return FAULT_ERROR;
  if (strcmp(action, "leave") == 0) return FAULT_LEAVE;
  return FAULT_NONE;
}

/* `message` is NULL for a named point, else the log line that log(text) is looked for in. */
static int fire(const identity *who, const char *point, const char *message, position at) {
  const char *list = getenv("HVD_TEST_FAULTS");
  if (list == NULL || *list == '\0') return FAULT_NONE;
  char *copy = strdup(list);
  char *rest = NULL;
  int result = FAULT_NONE;
  int index = 0;
  for (char *entry = strtok_r(copy, ",", &rest); entry != NULL; entry = strtok_r(NULL, ",", &rest), ++index) {
    char *colon = strchr(entry, ':');
    char *equals = colon != NULL ? strchr(colon, '=') : NULL;
    if (equals == NULL) continue;
    *colon = '\0';
    *equals = '\0';
    char *action = equals + 1;
    if (message != NULL) {
      if (strncmp(entry, "log(", 4) != 0) continue;
      entry[strlen(entry) - 1] = '\0';
      if (strstr(message, entry + 4) == NULL) continue;
    } else if (strcmp(entry, point) != 0) {
      continue;
    }
    if (!place_matches(colon + 1, who, at)) continue;
    int every = *action == '+';
    if (!every && !claim(who, index)) continue;
    int what = act(who, message != NULL ? message : point, action + every, at);
    if (what != FAULT_NONE) result = what;
  }
  free(copy);
  return result;
}

int fault(const identity *who, const char *point, position at) { return fire(who, point, NULL, at); }

void fault_on_log(const identity *who, const char *message, position at) { fire(who, "log", message, at); }

/* Writes events, and waits at gates. */
#define _GNU_SOURCE
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *text_of(const char *name, const char *fallback) {
  const char *value = getenv(name);
  return value != NULL ? value : fallback;
}

void identity_read(identity *who) {
  char path[4096];
  who->directory = text_of("HVD_TEST_DIR", ".");
  who->host = text_of("HVD_HOST", "?");
  who->slot = text_of("HVD_SLOT", "0");
  who->worker = text_of("HVD_WORKER", "0");
  const char *sink = getenv("HVD_TEST_SINK");
  who->sink = sink != NULL ? open(sink, O_WRONLY | O_APPEND | O_CLOEXEC) : STDOUT_FILENO;
  for (who->attempt = 1; who->attempt < 10000; ++who->attempt) {
    snprintf(path, sizeof path, "%s/attempt.%s.%s.%d", who->directory, who->host, who->slot, who->attempt);
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    if (fd >= 0 || errno != EEXIST) return;
  }
}

int64_t monotonic_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

const char *json_text(const char *text, char *out, int size) {
  int at = 0;
  for (; *text != '\0' && at + 7 < size; ++text) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\') {
      out[at++] = '\\';
      out[at++] = (char)c;
    } else if (c < 0x20) {
      at += snprintf(out + at, 7, "\\u%04x", c);
    } else {
      out[at++] = (char)c;
    }
  }
  out[at] = '\0';
  return out;
}

void trace(const identity *who, const char *event, const char *fields, ...) {
  char line[4000]; /* below PIPE_BUF: one write is one line */
  const int64_t t = monotonic_ns();
  const int64_t wall = time(NULL); /* after t */
  int at = snprintf(line, sizeof line,
                    "{\"ev\":\"%s\",\"host\":\"%s\",\"slot\":%s,\"worker\":%s,\"try\":%d,\"pid\":%d,"
                    "\"t\":%lld,\"wall\":%lld%s",
                    event, who->host, who->slot, who->worker, who->attempt, (int)getpid(), (long long)t,
                    (long long)wall, *fields != '\0' ? "," : "");
  va_list arguments;
  va_start(arguments, fields);
  at += vsnprintf(line + at, sizeof line - (size_t)at - 3, fields, arguments);
  va_end(arguments);
  if (at > (int)sizeof line - 3) at = (int)sizeof line - 3;
  line[at++] = '}';
  line[at++] = '\n';
  ssize_t written = write(who->sink, line, (size_t)at);
  (void)written;
}

int gate_wait(const identity *who, const char *name) {
  char path[4096];
  char byte;
  snprintf(path, sizeof path, "%s/gate.%s", who->directory, name);
  int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return 0; /* already opened by the harness */
  int64_t deadline = monotonic_ns() + (int64_t)60 * 1000000000;
  int result = -1;
  for (int64_t left; (left = deadline - monotonic_ns()) > 0;) {
    struct pollfd poller = {fd, POLLIN, 0};
    if (poll(&poller, 1, (int)(left / 1000000) + 1) <= 0) continue;
    if (read(fd, &byte, 1) >= 0 || errno != EAGAIN) { /* end of file: the harness has closed its end */
      result = 0;
      break;
    }
  }
  close(fd);
  return result;
}

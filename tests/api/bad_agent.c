/* Bad input to every function of an agent, and an agent in the process of its driver. */
#include <poll.h>
#include <unistd.h>

#include "check.h"
#include "hvd/driver.h"

#define SECRET "0123456789abcdef0123456789abcdef"

static hvd_error error;
static int line_pipe[2]; /* a byte for each line of a worker */

static void on_output(void *userdata, int32_t rank, const char *host, int32_t slot, int32_t is_stderr,
                      const char *line) {
  (void)userdata;
  (void)rank;
  CHECK(slot == 0 && is_stderr == 0);
  CHECK(strcmp(host, "far") == 0);
  CHECK(strcmp(line, "own") == 0);
  CHECK(write(line_pipe[1], "", 1) == 1);
}

static hvd_options *options_of(const char *const *pairs) {
  hvd_options *o = NULL;
  CHECK_STATUS(hvd_options_create(&o, &error), HVD_OK);
  for (; *pairs != NULL; pairs += 2) CHECK_STATUS(hvd_options_set(o, pairs[0], pairs[1], &error), HVD_OK);
  return o;
}

/* An agent can't be made of them: the error names this. */
static void refused(const char *const *pairs, const char *names) {
  hvd_agent *a = (hvd_agent *)&error;
  hvd_options *o = options_of(pairs);
  CHECK_STATUS(hvd_agent_create(o, &a, &error), HVD_INVALID);
  CHECK_NAMES(names);
  CHECK(a == (hvd_agent *)&error); /* results are untouched on failure */
  hvd_options_destroy(o);
}

static void no_agent(void) {
  const char *command[] = {"true", NULL};
  CHECK_STATUS(hvd_agent_create(NULL, NULL, &error), HVD_INVALID);
  CHECK_NAMES("ret_agent");
  CHECK_STATUS(hvd_agent_set_command(NULL, command, NULL, &error), HVD_INVALID);
  CHECK_NAMES("agent");
  CHECK_STATUS(hvd_agent_start(NULL, &error), HVD_INVALID);
  CHECK_NAMES("agent");
  CHECK_STATUS(hvd_agent_wait(NULL, 0, &error), HVD_INVALID);
  CHECK_NAMES("agent");
  CHECK_STATUS(hvd_agent_stop(NULL, "x", &error), HVD_INVALID);
  CHECK_NAMES("agent");
  CHECK_STATUS(hvd_agent_drain(NULL, 0, "x", &error), HVD_INVALID);
  CHECK_NAMES("agent");
  hvd_agent_destroy(NULL);
}

static void options(void) {
  const char *none[] = {NULL};
  const char *open[] = {"driver", "127.0.0.1:1", NULL};
  const char *blank[] = {"driver", "127.0.0.1:1", "secret", SECRET, "host", "a\nb", NULL};
  const char *many[] = {"driver", "127.0.0.1:1", "secret", SECRET, "slots_per_host", "65536", NULL};
  hvd_agent *a = NULL;
  CHECK_STATUS(hvd_agent_create(NULL, &a, &error), HVD_INVALID);
  CHECK_NAMES("driver");
  CHECK(a == NULL);
  refused(none, "driver");
  refused(open, "secret_file");
  refused(blank, "option host is 'a");
  refused(many, "slots_per_host");
}

static void arguments(void) {
  const char *pairs[] = {"driver", "127.0.0.1:1", "secret", SECRET, "host", "far", NULL};
  const char *lost[] = {"driver", "127.0.0.1:1", "secret", SECRET, "guard", "/nonexistent/guard", NULL};
  const char *command[] = {"true", NULL};
  const char *empty[] = {NULL};
  const char *blank[] = {"", NULL};
  const char *unnamed[] = {"no equals sign", NULL};
  hvd_options *o = options_of(pairs);
  hvd_agent *a = NULL;
  CHECK_STATUS(hvd_agent_create(o, &a, &error), HVD_OK);
  hvd_options_destroy(o); /* it is not kept */
  CHECK_STATUS(hvd_agent_set_command(a, NULL, NULL, &error), HVD_INVALID);
  CHECK_NAMES("argv is NULL");
  CHECK_STATUS(hvd_agent_set_command(a, empty, NULL, &error), HVD_INVALID);
  CHECK_NAMES("argv[0] is NULL");
  CHECK_STATUS(hvd_agent_set_command(a, blank, NULL, &error), HVD_INVALID);
  CHECK_NAMES("argv[0] is empty");
  CHECK_STATUS(hvd_agent_set_command(a, command, unnamed, &error), HVD_INVALID);
  CHECK_NAMES("no equals sign");
  CHECK_STATUS(hvd_agent_wait(a, HVD_MILLISECOND, &error), HVD_INVALID);
  CHECK_NAMES("not started");
  CHECK_STATUS(hvd_agent_stop(a, NULL, &error), HVD_INVALID);
  CHECK_NAMES("not started");
  CHECK_STATUS(hvd_agent_drain(a, 0, NULL, &error), HVD_INVALID);
  CHECK_NAMES("not started");
  CHECK_STATUS(hvd_agent_wait(a, -2, &error), HVD_INVALID);
  CHECK_NAMES("timeout_ns is -2");
  CHECK_STATUS(hvd_agent_drain(a, INT64_MAX, NULL, &error), HVD_INVALID);
  CHECK_NAMES("365 days");
  CHECK_STATUS(hvd_driver_start((hvd_driver *)a, &error), HVD_INVALID); /* another kind of handle */
  hvd_agent_destroy(a);
  CHECK_STATUS(hvd_agent_start(a, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_agent_stop(a, NULL, &error), HVD_CLOSED);
  hvd_agent_destroy(a);

  o = options_of(lost);
  CHECK_STATUS(hvd_agent_create(o, &a, &error), HVD_OK);
  CHECK_STATUS(hvd_agent_start(a, &error), HVD_UNAVAILABLE);
  CHECK_NAMES("/nonexistent/guard");
  hvd_agent_destroy(a);
  hvd_options_destroy(o);
}

static hvd_agent *join(int32_t port, const char *secret, const char *const *command) {
  char address[32];
  const char *pairs[] = {"driver", address, "secret",     secret, "host", "far",
                         "job",    "j",     "stop_grace", "1",    NULL};
  hvd_options *o;
  hvd_agent *a = NULL;
  snprintf(address, sizeof(address), "127.0.0.1:%d", (int)port);
  o = options_of(pairs);
  CHECK_STATUS(hvd_agent_create(o, &a, &error), HVD_OK);
  if (command != NULL) CHECK_STATUS(hvd_agent_set_command(a, command, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_agent_start(a, &error), HVD_OK);
  hvd_options_destroy(o);
  return a;
}

static hvd_driver *driver(const char *np, int32_t *ret_port) {
  const char *pairs[] = {
      "discover_agents", "1",     "secret",     SECRET, "listen",          "127.0.0.1", "np", np, "job", "j",
      "restart",         "false", "stop_grace", "1",    "elastic_timeout", "300",       NULL};
  const char *command[] = {"false", NULL};
  hvd_driver_status_info info = {0};
  hvd_options *o = options_of(pairs);
  hvd_driver *d = NULL;
  info.struct_size = sizeof(info);
  CHECK_STATUS(hvd_driver_create(o, &d, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_set_command(d, command, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_set_output(d, on_output, NULL, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_start(d, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_get_status(d, &info, &error), HVD_OK);
  CHECK(info.port > 0);
  *ret_port = info.port;
  hvd_options_destroy(o);
  return d;
}

/* The command of its host takes precedence, and the job's end is the agent's. */
static void job(void) {
  const char *own[] = {"sh", "-c", "echo own; exec sleep 1000", NULL};
  struct pollfd line = {-1, POLLIN, 0};
  int32_t port = 0;
  hvd_driver *d;
  hvd_agent *a;
  CHECK(pipe(line_pipe) == 0);
  line.fd = line_pipe[0];
  d = driver("1", &port);
  a = join(port, "another secret, of as many letters as", NULL);
  CHECK_STATUS(hvd_agent_wait(a, 60 * HVD_SECOND, &error), HVD_REFUSED);
  hvd_agent_destroy(a);
  a = join(port, SECRET, own);
  CHECK_STATUS(hvd_agent_set_command(a, own, NULL, &error), HVD_INVALID);
  CHECK_NAMES("started already");
  CHECK_STATUS(hvd_agent_start(a, &error), HVD_INVALID);
  CHECK_NAMES("started already");
  CHECK(poll(&line, 1, 60 * 1000) == 1);
  CHECK_STATUS(hvd_driver_stop(d, "enough", &error), HVD_OK);
  CHECK_STATUS(hvd_driver_wait(d, 60 * HVD_SECOND, &error), HVD_JOB_FAILED);
  CHECK_NAMES("enough");
  hvd_driver_destroy(d);
  CHECK_STATUS(hvd_agent_wait(a, 60 * HVD_SECOND, &error), HVD_JOB_FAILED);
  CHECK_NAMES("enough");
  CHECK_STATUS(hvd_agent_wait(a, 60 * HVD_SECOND, &error), HVD_JOB_FAILED); /* it stays so */
  hvd_agent_destroy(a);
}

/* Stopped and drained while the driver waits for more hosts. */
static void ends(void) {
  int32_t port = 0;
  hvd_driver *d = driver("2", &port);
  hvd_agent *a = join(port, SECRET, NULL);
  CHECK_STATUS(hvd_agent_wait(a, HVD_MILLISECOND, &error), HVD_TIMEOUT);
  CHECK_NAMES("host far");
  CHECK_STATUS(hvd_agent_stop(a, "enough", &error), HVD_OK);
  CHECK_STATUS(hvd_agent_wait(a, 60 * HVD_SECOND, &error), HVD_CLOSED);
  CHECK_NAMES("enough");
  CHECK_STATUS(hvd_agent_stop(a, "enough", &error), HVD_OK);
  hvd_agent_destroy(a);
  a = join(port, SECRET, NULL);
  CHECK_STATUS(hvd_agent_drain(a, HVD_SECOND, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_agent_wait(a, 60 * HVD_SECOND, &error), HVD_OK); /* it had no workers */
  hvd_agent_destroy(a);
  hvd_driver_destroy(d);
}

int main(void) {
  no_agent();
  options();
  arguments();
  job();
  ends();
  return report("bad_agent");
}

/* Bad input to every function of driver.h. */
#include "check.h"
#include "hvd/driver.h"

static hvd_error error;
static int destroyed;

static void count_destroy(void *userdata) {
  (void)userdata;
  ++destroyed;
}
static int32_t no_hosts(void *userdata, hvd_add_host_fn add, void *sink) {
  (void)userdata;
  (void)add;
  (void)sink;
  return 1;
}
static int32_t start_worker(void *userdata, const hvd_launch *launch) {
  (void)userdata;
  (void)launch;
  return 0;
}
static void stop_worker(void *userdata, uint64_t worker, int32_t force) {
  (void)userdata;
  (void)worker;
  (void)force;
}
static void on_output(void *userdata, int32_t rank, const char *host, int32_t slot, int32_t is_stderr,
                      const char *line) {
  (void)userdata;
  (void)rank;
  (void)host;
  (void)slot;
  (void)is_stderr;
  (void)line;
}

static void ladder(const char *key, const char *value, const char *other, const char *other_value) {
  hvd_options *o = NULL;
  hvd_driver *d = NULL;
  CHECK_STATUS(hvd_options_create(&o, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, "hosts", "a:4", &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, "local_hosts", "1", &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, key, value, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, other, other_value, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_create(o, &d, &error), HVD_INVALID);
  CHECK_NAMES(key);
  CHECK_NAMES(other);
  CHECK(d == NULL);
  hvd_options_destroy(o);
}

/* An operator's wishes, to a job that waits for its hosts. */
static void wishes(void) {
  const char *const pairs[] = {"discover_agents",
                               "1",
                               "secret",
                               "0123456789abcdef0123456789abcdef",
                               "np",
                               "2",
                               "max_np",
                               "3",
                               "listen",
                               "127.0.0.1",
                               "elastic_timeout",
                               "300"};
  const char *command[] = {"true", NULL};
  hvd_options *o = NULL;
  hvd_driver *d = NULL;
  size_t i;
  CHECK_STATUS(hvd_options_create(&o, &error), HVD_OK);
  for (i = 0; i < sizeof(pairs) / sizeof(*pairs); i += 2) {
    CHECK_STATUS(hvd_options_set(o, pairs[i], pairs[i + 1], &error), HVD_OK);
  }
  CHECK_STATUS(hvd_driver_create(o, &d, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_set_command(d, command, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_drain(d, NULL, 0, NULL, &error), HVD_INVALID);
  CHECK_NAMES("host is NULL");
  CHECK_STATUS(hvd_driver_drain(d, "", 0, NULL, &error), HVD_INVALID);
  CHECK_NAMES("host is empty");
  CHECK_STATUS(hvd_driver_drain(d, "a", -1, NULL, &error), HVD_INVALID);
  CHECK_NAMES("timeout_ns is -1");
  CHECK_STATUS(hvd_driver_undrain(d, NULL, &error), HVD_INVALID);
  CHECK_NAMES("host is NULL");
  CHECK_STATUS(hvd_driver_undrain(d, "", &error), HVD_INVALID);
  CHECK_NAMES("host is empty");
  CHECK_STATUS(hvd_driver_drain(d, "a", 0, NULL, &error), HVD_INVALID);
  CHECK_NAMES("not started");
  CHECK_STATUS(hvd_driver_undrain(d, "a", &error), HVD_INVALID);
  CHECK_NAMES("not started");
  CHECK_STATUS(hvd_driver_scale(d, 2, &error), HVD_INVALID);
  CHECK_NAMES("not started");
  CHECK_STATUS(hvd_driver_start(d, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_drain(d, "elsewhere", 0, NULL, &error), HVD_INVALID);
  CHECK_NAMES("elsewhere");
  CHECK_STATUS(hvd_driver_undrain(d, "elsewhere", &error), HVD_INVALID);
  CHECK_NAMES("elsewhere");
  CHECK_STATUS(hvd_driver_scale(d, 4, &error), HVD_INVALID);
  CHECK_NAMES("4");
  CHECK_STATUS(hvd_driver_scale(d, 0, &error), HVD_INVALID);
  CHECK_NAMES("0");
  CHECK_STATUS(hvd_driver_scale(d, -5, &error), HVD_INVALID);
  CHECK_NAMES("-5");
  hvd_driver_destroy(d);
  CHECK_STATUS(hvd_driver_drain(d, "a", 0, NULL, &error), HVD_CLOSED);
  CHECK_STATUS(hvd_driver_undrain(d, "a", &error), HVD_CLOSED);
  CHECK_STATUS(hvd_driver_scale(d, 2, &error), HVD_CLOSED);
  hvd_options_destroy(o);
}

int main(void) {
  hvd_options *o = NULL;
  hvd_driver *d = NULL;
  hvd_driver_status_info info;
  const char *missing[] = {"/nonexistent/program", NULL};
  const char *empty[] = {NULL};
  const char *unnamed[] = {"no equals sign", NULL};
  const char *shell[] = {"true", NULL};
  char *text = (char *)shell; /* no text: results are untouched on failure */
  memset(&info, 0, sizeof(info));

  CHECK_STATUS(hvd_driver_create(NULL, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_set_command(NULL, shell, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_set_discovery(NULL, no_hosts, NULL, count_destroy, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_set_launcher(NULL, start_worker, stop_worker, NULL, count_destroy, &error),
               HVD_INVALID);
  CHECK_STATUS(hvd_driver_set_output(NULL, on_output, NULL, count_destroy, &error), HVD_INVALID);
  CHECK(destroyed == 3);
  CHECK_STATUS(hvd_driver_worker_exited(NULL, 1, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_start(NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_wait(NULL, 0, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_stop(NULL, "x", &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_get_status(NULL, &info, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_describe(NULL, HVD_DRIVER_FORMAT_TEXT, &text, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_command(NULL, NULL, NULL, 0, &text, &error), HVD_INVALID);
  CHECK(text == (char *)shell);
  CHECK_STATUS(hvd_driver_drain(NULL, "a", 0, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_undrain(NULL, "a", &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_scale(NULL, 1, &error), HVD_INVALID);
  hvd_driver_destroy(NULL);

  ladder("min_np", "3", "np", "2");
  ladder("np", "3", "max_np", "2");
  ladder("heartbeat_interval", "5", "heartbeat_timeout", "6");
  ladder("restart_delay_min", "5", "restart_delay_max", "4");
  ladder("blocklist_cooldown_min", "5", "blocklist_cooldown_max", "4");

  CHECK_STATUS(hvd_options_create(&o, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, "local_hosts", "1", &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, "hosts", "a:0", &error), HVD_OK);
  CHECK_STATUS(hvd_driver_create(o, &d, &error), HVD_INVALID);
  CHECK_NAMES("a:0");
  CHECK_STATUS(hvd_options_set(o, "hosts", "a:1,a:2", &error), HVD_OK);
  CHECK_STATUS(hvd_driver_create(o, &d, &error), HVD_INVALID);
  CHECK_STATUS(hvd_options_set(o, "hosts", "a:1", &error), HVD_OK);
  CHECK_STATUS(hvd_driver_create(o, &d, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_describe(d, 9, &text, &error), HVD_INVALID);
  CHECK_NAMES("9");
  CHECK(text == (char *)shell);
  CHECK_STATUS(hvd_driver_set_command(d, NULL, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_set_command(d, empty, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_set_command(d, shell, unnamed, &error), HVD_INVALID);
  CHECK_NAMES("no equals sign");
  destroyed = 0;
  CHECK_STATUS(hvd_driver_set_discovery(d, NULL, NULL, count_destroy, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_set_launcher(d, NULL, stop_worker, NULL, count_destroy, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_set_launcher(d, start_worker, NULL, NULL, count_destroy, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_set_output(d, NULL, NULL, count_destroy, &error), HVD_INVALID);
  CHECK(destroyed == 4);
  CHECK_STATUS(hvd_driver_start(d, &error), HVD_INVALID); /* nothing to start */
  CHECK_STATUS(hvd_driver_get_status(d, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_driver_get_status(d, &info, &error), HVD_INVALID);
  info.struct_size = sizeof(info);
  CHECK_STATUS(hvd_driver_get_status(d, &info, &error), HVD_OK);
  CHECK(info.phase == HVD_PHASE_NEW && info.port == 0);
  CHECK_STATUS(hvd_driver_wait(d, 10 * HVD_MILLISECOND, &error), HVD_INVALID); /* not started */
  CHECK_STATUS(hvd_driver_set_command(d, missing, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_start(d, &error), HVD_UNAVAILABLE);
  CHECK_NAMES("/nonexistent/program");
  hvd_driver_destroy(d);

  d = NULL;
  CHECK_STATUS(hvd_options_set(o, "listen", "203.0.113.1:9", &error), HVD_OK);
  CHECK_STATUS(hvd_driver_create(o, &d, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_set_command(d, shell, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_start(d, &error), HVD_UNAVAILABLE);
  CHECK_NAMES("203.0.113.1");
  hvd_driver_destroy(d);

  d = NULL;
  hvd_options_destroy(o);
  CHECK_STATUS(hvd_options_create(&o, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(o, "np", "1", &error), HVD_OK);
  CHECK_STATUS(hvd_driver_create(o, &d, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_set_command(d, shell, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_set_discovery(d, no_hosts, NULL, NULL, &error), HVD_OK);
  CHECK_STATUS(hvd_driver_start(d, &error), HVD_UNAVAILABLE);
  hvd_driver_destroy(d);
  hvd_options_destroy(o);
  wishes();
  return report("bad_driver_input");
}

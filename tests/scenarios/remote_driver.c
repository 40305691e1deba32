/* hvdrun with a launcher of one's own, for hosts that are not this one: remote_driver ENTER [options as
 * hvdrun's] worker...
 *
 * A worker is started as "ENTER HOST worker...", with the environment that the driver hands over added to
 * this process's. What workers print goes to stdout, a line at a time behind "[host:slot] ", and the last
 * line is hvdrun's.
 */
#define _GNU_SOURCE
#include <hvd/driver.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_WORKERS = 200 };

typedef struct worker {
  struct job *job;
  uint64_t id;
  pid_t pid; /* 0: it has ended */
  FILE *output;
  char name[300];
  pthread_t reader;
} worker;

typedef struct job {
  hvd_driver *driver;
  const char *enter;
  char **command;
  pthread_mutex_t mutex; /* of workers' pids */
  worker workers[MAX_WORKERS];
  int count;
} job;

static void say(const char *text) {
  printf("hvdrun: %s\n", text);
  fflush(stdout);
}

static int fail(const hvd_error *error) {
  char text[sizeof error->message + 16];
  snprintf(text, sizeof text, "job failed: %s", error->message);
  say(text);
  return 1;
}

/* A thread for each worker: its lines, then its end. */
static void *read_worker(void *argument) {
  worker *w = argument;
  char *line = NULL;
  size_t capacity = 0;
  while (getline(&line, &capacity, w->output) > 0) {
    printf("[%s] %s%s", w->name, line, strchr(line, '\n') != NULL ? "" : "\n");
    fflush(stdout);
  }
  free(line);
  fclose(w->output);
  siginfo_t info;
  waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOWAIT);
  pthread_mutex_lock(&w->job->mutex); /* nobody signals a pid that is another's by now */
  waitpid(w->pid, NULL, 0);
  w->pid = 0;
  pthread_mutex_unlock(&w->job->mutex);
  const int32_t status = info.si_code == CLD_EXITED ? info.si_status : 256 + info.si_status;
  hvd_driver_worker_exited(w->job->driver, w->id, status, NULL);
  return NULL;
}

static char **joined(char *const *first, const char *const *second) {
  size_t count = 0, at = 0;
  for (char *const *p = first; *p != NULL; ++p) ++count;
  for (const char *const *p = second; *p != NULL; ++p) ++count;
  char **all = calloc(count + 1, sizeof *all);
  for (const char *const *p = second; all != NULL && *p != NULL; ++p)
    all[at++] = (char *)*p; /* getenv takes the first */
  for (char *const *p = first; all != NULL && *p != NULL; ++p) all[at++] = *p;
  return all;
}

static int32_t start(void *userdata, const hvd_launch *launch) {
  job *j = userdata;
  if (j->count == MAX_WORKERS) return 1;
  worker *w = &j->workers[j->count];
  w->job = j;
  w->id = launch->worker;
  snprintf(w->name, sizeof w->name, "%s:%d", launch->host, (int)launch->slot);
  char *prefix[] = {(char *)j->enter, (char *)launch->host, NULL};
  char **argv = joined(j->command, (const char *const *)prefix);
  char **environment = joined(environ, launch->environment);
  int ends[2] = {-1, -1};
  if (argv == NULL || environment == NULL || pipe(ends) != 0) return 1;
  w->output = fdopen(ends[0], "r");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  pthread_mutex_lock(&j->mutex);
  const int failed = posix_spawn(&w->pid, j->enter, &actions, &attributes, argv, environment);
  pthread_mutex_unlock(&j->mutex);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  free(argv);
  free(environment);
  close(ends[1]);
  if (failed == 0 && pthread_create(&w->reader, NULL, read_worker, w) == 0) {
    pthread_mutex_lock(&j->mutex);
    ++j->count;
    pthread_mutex_unlock(&j->mutex);
    return 0;
  }
  fclose(w->output);
  return 1;
}

static void stop(void *userdata, uint64_t id, int32_t force) {
  job *j = userdata;
  pthread_mutex_lock(&j->mutex);
  for (int i = 0; i < j->count; ++i) {
    if (j->workers[i].id == id && j->workers[i].pid > 0)
      kill(-j->workers[i].pid, force != 0 ? SIGKILL : SIGTERM);
  }
  pthread_mutex_unlock(&j->mutex);
}

static void *stop_on_signal(void *argument) {
  job *j = argument;
  sigset_t set;
  int number = 0;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigwait(&set, &number);
  hvd_driver_stop(j->driver, "SIGTERM", NULL);
  return NULL;
}

static void log_line(void *userdata, hvd_log_level level, const char *message) {
  (void)userdata;
  char text[2000];
  snprintf(text, sizeof text, "%s%s", level >= 5 ? "error: " : level == 4 ? "warning: " : "", message);
  say(text);
}

/* Takes hvdrun's options; returns where the command begins. */
static int take_options(int argc, char **argv, hvd_options *options, hvd_error *error) {
  static const struct {
    const char *flag, *key;
  } flags[] = {{"-np", "np"},
               {"--min-np", "min_np"},
               {"--max-np", "max_np"},
               {"-H", "hosts"},
               {"--host-discovery-script", "discovery_script"}};
  int at = 2;
  while (at < argc && argv[at][0] == '-') {
    if (strcmp(argv[at], "--verbose") == 0) {
      if (hvd_options_set_log(options, 3, log_line, NULL, NULL, error) != HVD_OK) return -1;
      ++at;
      continue;
    }
    if (at + 1 == argc) return -1;
    const char *key = NULL, *value = argv[at + 1];
    char pair[1000];
    if (strcmp(argv[at], "--set") == 0) {
      snprintf(pair, sizeof pair, "%s", value);
      char *equals = strchr(pair, '=');
      if (equals == NULL) return -1;
      *equals = '\0';
      key = pair;
      value = equals + 1;
    }
    for (size_t i = 0; i < sizeof flags / sizeof *flags; ++i) {
      if (strcmp(argv[at], flags[i].flag) == 0) key = flags[i].key;
    }
    if (key == NULL || hvd_options_set(options, key, value, error) != HVD_OK) return -1;
    at += 2;
  }
  return at < argc ? at : -1;
}

int main(int argc, char **argv) {
  static job j = {.mutex = PTHREAD_MUTEX_INITIALIZER};
  hvd_error error = HVD_ERROR_INIT;
  hvd_options *options = NULL;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  if (hvd_options_create(&options, &error) != HVD_OK) return fail(&error);
  const int command = take_options(argc, argv, options, &error);
  if (command < 0) {
    if (error.message[0] == '\0') snprintf(error.message, sizeof error.message, "what are these arguments?");
    return fail(&error);
  }
  j.enter = argv[1];
  j.command = argv + command;
  if (hvd_driver_create(options, &j.driver, &error) != HVD_OK ||
      hvd_driver_set_launcher(j.driver, start, stop, &j, NULL, &error) != HVD_OK ||
      hvd_driver_start(j.driver, &error) != HVD_OK) {
    return fail(&error);
  }
  hvd_options_destroy(options);
  pthread_t signals;
  pthread_create(&signals, NULL, stop_on_signal, &j);
  const hvd_status status = hvd_driver_wait(j.driver, HVD_DEFAULT_TIMEOUT, &error);
  hvd_driver_status_info info = {.struct_size = sizeof info};
  hvd_driver_get_status(j.driver, &info, NULL);
  pthread_cancel(signals);
  pthread_join(signals, NULL);
  pthread_mutex_lock(&j.mutex);
  const int count = j.count;
  pthread_mutex_unlock(&j.mutex);
  for (int i = 0; i < count; ++i) pthread_join(j.workers[i].reader, NULL);
  hvd_driver_destroy(j.driver);
  if (status != HVD_OK) return fail(&error);
  char text[sizeof info.sentence + 16];
  snprintf(text, sizeof text, "job succeeded: %s", info.sentence);
  say(text);
  return 0;
}

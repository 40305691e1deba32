/* Processor time of a context that waits for nothing, over 10 s, beside a process that only sleeps.
 * Without arguments: runs itself under hvdrun as four workers and prints the result, a JSON object on its
 * last line. */
#define _GNU_SOURCE
#include <hvd/hvd.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 10, WORKERS = 4 };

static double processor_ms(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 +
         (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3;
}

/* Processor time of this process while its main thread sleeps. */
static double idle_ms(void) {
  double before = processor_ms();
  struct timespec left = {SECONDS, 0};
  while (nanosleep(&left, &left) != 0) {}
  return processor_ms() - before;
}

static int worker(void) {
  hvd_error error = HVD_ERROR_INIT;
  hvd_context *context = NULL;
  hvd_status status = hvd_init(NULL, &context, &error);
  if (status == HVD_OK) status = hvd_barrier(context, "begin", &error);
  if (status == HVD_OK) {
    double used = idle_ms();
    status = hvd_barrier(context, "end", &error);
    printf("idle_ms %.3f\n", used);
    fflush(stdout);
  }
  if (status == HVD_OK) status = hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, &error);
  if (status != HVD_OK) fprintf(stderr, "%s\n", error.message);
  hvd_destroy(context);
  return status == HVD_OK ? 0 : 1;
}

int main(int argc, char **argv) {
  char self[PATH_MAX] = "", folder[PATH_MAX], command[2 * PATH_MAX + 100], line[1000];
  double used[WORKERS] = {0}, baseline = 0;
  int seen = 0;
  if (argc > 1 && strcmp(argv[1], "--worker") == 0) return worker();
  if (argc > 1 && strcmp(argv[1], "--sleep") == 0) {
    printf("idle_ms %.3f\n", idle_ms());
    return 0;
  }
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 1;
  memcpy(folder, self, sizeof folder);
  snprintf(command, sizeof command, "'%s/hvdrun' -np %d -H localhost:%d '%s' --worker 2>&1", dirname(folder),
           WORKERS, WORKERS, self);
  FILE *job = popen(command, "r");
  if (job == NULL) return 1;
  while (fgets(line, sizeof line, job) != NULL) {
    const char *value = strstr(line, "idle_ms ");
    if (value != NULL && seen < WORKERS) {
      used[seen++] = atof(value + strlen("idle_ms "));
    } else {
      fputs(line, stdout);
    }
  }
  if (pclose(job) != 0 || seen != WORKERS) return 1;
  snprintf(command, sizeof command, "'%s' --sleep", self);
  FILE *sleeper = popen(command, "r");
  if (sleeper == NULL || fgets(line, sizeof line, sleeper) == NULL) return 1;
  baseline = atof(line + strlen("idle_ms "));
  pclose(sleeper);
  double worst = 0;
  for (int i = 0; i < WORKERS; i++) worst = used[i] > worst ? used[i] : worst;
  printf("idle context: at most %.3f ms of processor time in %d s; a sleeping process: %.3f ms\n", worst,
         SECONDS, baseline);
  printf("{\"idle_10s\": {\"context_ms\": %.3f, \"process_ms\": %.3f, \"workers\": %d}}\n", worst, baseline,
         WORKERS);
  return 0;
}

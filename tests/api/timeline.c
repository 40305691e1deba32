/* The timeline of a worker that is alone: started and stopped while it runs, and by option. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "hvd/hvd.h"

static hvd_error error;

/* The file's text; "" if there is none. */
static const char *text_of(const char *path) {
  static char text[1 << 16];
  FILE *file = fopen(path, "rb");
  size_t length = file == NULL ? 0 : fread(text, 1, sizeof(text) - 1, file);
  text[length] = 0;
  if (file != NULL) fclose(file);
  return text;
}

static void commit_once(hvd_context *context) {
  hvd_state *state = NULL;
  int64_t step = 3;
  CHECK_STATUS(hvd_state_create(context, &state, &error), HVD_OK);
  CHECK_STATUS(hvd_state_add_value(state, "step", &step, sizeof(step), &error), HVD_OK);
  CHECK_STATUS(hvd_state_commit(state, &error), HVD_OK);
  CHECK_STATUS(hvd_state_restore(state, &error), HVD_OK);
  hvd_state_destroy(state);
}

int main(void) {
  char folder[] = "/tmp/hvd-timeline-XXXXXX";
  char first[64];
  char second[64];
  char pattern[64];
  hvd_options *options = NULL;
  hvd_context *context = NULL;
  const char *text;

  if (mkdtemp(folder) == NULL) return 1;
  snprintf(first, sizeof(first), "%s/a.0.json", folder);
  snprintf(second, sizeof(second), "%s/b0", folder);

  CHECK_STATUS(hvd_options_create(&options, &error), HVD_OK);
  snprintf(pattern, sizeof(pattern), "%s/a", folder);
  CHECK_STATUS(hvd_options_set(options, "timeline", pattern, &error), HVD_OK);
  CHECK_STATUS(hvd_init(options, &context, &error), HVD_OK);

  CHECK_STATUS(hvd_timeline_start(NULL, first, &error), HVD_INVALID);
  CHECK_STATUS(hvd_timeline_start(context, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_timeline_start(context, "", &error), HVD_INVALID);
  snprintf(pattern, sizeof(pattern), "%s/b%%w", folder);
  CHECK_STATUS(hvd_timeline_start(context, pattern, &error), HVD_INVALID); /* the option's is on */
  CHECK_NAMES(first);
  commit_once(context);
  CHECK_STATUS(hvd_barrier(context, "now", &error), HVD_OK);
  CHECK_STATUS(hvd_timeline_stop(context, &error), HVD_OK);
  CHECK_STATUS(hvd_timeline_stop(context, &error), HVD_OK);
  text = text_of(first);
  CHECK(strncmp(text, "[\n{", 3) == 0 && strcmp(text + strlen(text) - 3, "\n]\n") == 0);
  CHECK(strstr(text, "\"name\":\"commit\"") != NULL);
  CHECK(strstr(text, "\"name\":\"restore\"") != NULL);
  CHECK(strstr(text, "\"name\":\"now\"") != NULL && strstr(text, "\"kind\":\"barrier\"") != NULL);
  CHECK(strstr(text, "rank 0 (host ") != NULL);

  CHECK_STATUS(hvd_timeline_start(context, "/no/such/folder/t", &error), HVD_UNAVAILABLE);
  CHECK(error.vendor_code != 0);
  CHECK_STATUS(hvd_timeline_start(context, "/tmp/%r", &error), HVD_INVALID);
  CHECK_NAMES("%r");
  CHECK_STATUS(hvd_timeline_start(context, pattern, &error), HVD_OK);
  commit_once(context);
  CHECK_STATUS(hvd_shutdown(context, HVD_DEFAULT_TIMEOUT, &error), HVD_OK); /* closes the file */
  CHECK_STATUS(hvd_timeline_start(context, first, &error), HVD_CLOSED);
  text = text_of(second);
  CHECK(strcmp(text + strlen(text) - 3, "\n]\n") == 0);
  CHECK(strstr(text, "\"name\":\"commit\"") != NULL);
  hvd_destroy(context);

  /* What can't be recorded is no reason not to train. */
  CHECK_STATUS(hvd_options_set(options, "timeline", "/no/such/folder/t", &error), HVD_OK);
  CHECK_STATUS(hvd_init(options, &context, &error), HVD_OK);
  CHECK_STATUS(hvd_barrier(context, "now", &error), HVD_OK);
  hvd_destroy(context);
  hvd_options_destroy(options);
  unlink(first);
  unlink(second);
  rmdir(folder);
  return report("timeline");
}

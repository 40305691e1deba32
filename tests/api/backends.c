/* Which backends there are, and which one serves what and why: backends DIRECTORY-OF-TEST-MODULES
 * [NAME-IN-USE] */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "hvd/backend.h"
#include "hvd/hvd.h"

static hvd_error error;

/* The report on a file of the test modules. */
static int find(const hvd_options* options, const char* file, hvd_available_backend_info* ret_report) {
  size_t count = 0, i;
  CHECK_STATUS(hvd_get_available_backend_count(options, &count, &error), HVD_OK);
  CHECK(count > 0);
  for (i = 0; i < count; ++i) {
    memset(ret_report, 0, sizeof(*ret_report));
    ret_report->struct_size = sizeof(*ret_report);
    CHECK_STATUS(hvd_get_available_backend(options, i, ret_report, &error), HVD_OK);
    if (i == 0)
      CHECK(strcmp(ret_report->name, "self") == 0 && ret_report->path[0] == 0 && ret_report->usable);
    if (strstr(ret_report->path, file) != NULL) return 1;
  }
  return 0;
}

static void reports(const char* directory) {
  hvd_options* options = NULL;
  hvd_available_backend_info r;
  size_t count = 0;
  CHECK_STATUS(hvd_options_create(&options, &error), HVD_OK);
  CHECK_STATUS(hvd_options_set(options, "plugin_path", directory, &error), HVD_OK);
  if (find(options, "/libhvd_tiny.so", &r)) {
    CHECK(strcmp(r.name, "tiny") == 0 && strcmp(r.version, "1") == 0 && r.usable);
    CHECK(r.abi_version == HVD_BACKEND_ABI_VERSION);
    CHECK(r.memories == (uint64_t)1 << HVD_MEMORY_HOST && r.dtypes == (uint64_t)1 << HVD_DTYPE_FLOAT32);
    CHECK(r.collectives == (uint64_t)1 << HVD_COLLECTIVE_BARRIER);
    CHECK(r.local == 0 && r.max_instances == 2 && r.reason[0] == 0);
    CHECK(strncmp(r.path, directory, strlen(directory)) == 0);
  } else {
    CHECK(!"tiny was found");
  }
  if (find(options, "/libhvd_device_double.so", &r)) {
    CHECK(r.memories == (uint64_t)1 << HVD_MEMORY_CUDA && r.usable);
  } else {
    CHECK(!"device_double was found");
  }
  if (find(options, "/libhvd_away.so", &r)) {
    CHECK(strcmp(r.name, "away") == 0 && !r.usable && r.abi_version == 0 && r.memories == 0);
    CHECK(strstr(r.reason, "on holiday") != NULL);
  } else {
    CHECK(!"away was found");
  }
  /* A program of an older header gets no more than it knows. */
  memset(&r, 0x5a, sizeof(r));
  r.struct_size = sizeof(size_t) + 16;
  CHECK_STATUS(hvd_get_available_backend(options, 0, &r, &error), HVD_OK);
  CHECK(strcmp(r.name, "self") == 0 && r.version[0] == 0x5a);
  r.struct_size = 0;
  CHECK_STATUS(hvd_get_available_backend(options, 0, &r, &error), HVD_INVALID);
  CHECK_STATUS(hvd_get_available_backend(options, 0, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_get_available_backend_count(options, NULL, &error), HVD_INVALID);
  CHECK_STATUS(hvd_get_available_backend_count(NULL, &count, &error), HVD_OK);
  r.struct_size = sizeof(r);
  CHECK_STATUS(hvd_get_available_backend(NULL, 9999, &r, &error), HVD_INVALID);
  CHECK_NAMES("9999");
  hvd_options_destroy(options);
}

static void choices(const char* name) {
  hvd_context* c = NULL;
  hvd_backend_choice_info s;
  hvd_backend_info info;
  memset(&s, 0, sizeof(s));
  s.struct_size = sizeof(s);
  CHECK_STATUS(
      hvd_get_backend_choice(NULL, HVD_MEMORY_HOST, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE, &s, &error),
      HVD_INVALID);
  CHECK_STATUS(hvd_init(NULL, &c, &error), HVD_OK);
  if (c == NULL) return;
  CHECK_STATUS(
      hvd_get_backend_choice(c, HVD_MEMORY_HOST, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE, &s, &error),
      HVD_OK);
  CHECK(strcmp(s.name, name) == 0);
  CHECK(strstr(s.reason, strcmp(name, "self") == 0 ? "alone" : name) != NULL);
  memset(&info, 0, sizeof(info));
  info.struct_size = sizeof(info);
  CHECK_STATUS(hvd_get_backend(c, &info, &error), HVD_OK);
  CHECK(strcmp(info.name, name) == 0);
  CHECK_STATUS(hvd_get_backend_choice(c, HVD_MEMORY_HOST, 0, HVD_COLLECTIVE_BARRIER, &s, &error), HVD_OK);
  CHECK_STATUS(hvd_get_backend_choice(c, HVD_MEMORY_HOST, 0, HVD_COLLECTIVE_ALLREDUCE, &s, &error),
               HVD_UNSUPPORTED);
  CHECK_STATUS(hvd_get_backend_choice(c, HVD_MEMORY_HOST, HVD_DTYPE_FLOAT32, 1000, &s, &error),
               HVD_UNSUPPORTED);
  CHECK_STATUS(hvd_get_backend_choice(c, 63, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE, &s, &error),
               HVD_UNSUPPORTED);
  CHECK_STATUS(
      hvd_get_backend_choice(c, HVD_MEMORY_HOST, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE, NULL, &error),
      HVD_INVALID);
  if (getenv("HVD_BACKEND") != NULL && strcmp(getenv("HVD_BACKEND"), name) == 0) { /* host memory alone */
    CHECK_STATUS(
        hvd_get_backend_choice(c, HVD_MEMORY_CUDA, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE, &s, &error),
        HVD_UNSUPPORTED);
    CHECK_NAMES("option backend is");
  }
  CHECK_STATUS(hvd_shutdown(c, HVD_DEFAULT_TIMEOUT, &error), HVD_OK);
  CHECK_STATUS(
      hvd_get_backend_choice(c, HVD_MEMORY_HOST, HVD_DTYPE_FLOAT32, HVD_COLLECTIVE_ALLREDUCE, &s, &error),
      HVD_CLOSED);
  hvd_destroy(c);
}

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  reports(argv[1]);
  choices(argc > 2 ? argv[2] : "self");
  return report("backends");
}

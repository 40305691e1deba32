/* Collectives on GPUs: NCCL, bare, or libhvd over its module nccl. Both libraries of NVIDIA's are loaded
 * at run time, so that this program is built everywhere. usage: ranks_nccl devices | raw RANK SIZE | hvd */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <hvd/hvd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ranks.h"

/* As cuda.h and nccl.h have them. */
typedef unsigned long long device_pointer;
typedef struct unique_id {
  char internal[128];
} unique_id;
typedef struct config { /* the beginning of ncclConfig_t, which is all that a library of its version reads */
  size_t size;
  unsigned magic, version;
  int blocking;
} config;
enum { NCCL_FLOAT32 = 7, NCCL_SUM = 0 };

#define CUDA_FUNCTIONS(X)                                               \
  X(cuInit, (unsigned))                                                 \
  X(cuDeviceGetCount, (int*))                                           \
  X(cuDeviceGet, (int*, int))                                           \
  X(cuDevicePrimaryCtxRetain, (void**, int))                            \
  X(cuCtxPushCurrent_v2, (void*))                                       \
  X(cuStreamCreate, (void**, unsigned))                                 \
  X(cuStreamSynchronize, (void*))                                       \
  X(cuMemAlloc_v2, (device_pointer*, size_t))                           \
  X(cuMemFree_v2, (device_pointer))                                     \
  X(cuMemcpyHtoDAsync_v2, (device_pointer, const void*, size_t, void*)) \
  X(cuMemcpyDtoHAsync_v2, (void*, device_pointer, size_t, void*))
#define NCCL_FUNCTIONS(X)                                                \
  X(ncclGetUniqueId, (unique_id*))                                       \
  X(ncclCommInitRankConfig, (void**, int, unique_id, int, config*))      \
  X(ncclCommDestroy, (void*))                                            \
  X(ncclBroadcast, (const void*, void*, size_t, int, int, void*, void*)) \
  X(ncclAllReduce, (const void*, void*, size_t, int, int, void*, void*))

#define MEMBER(name, parameters) int(*name) parameters;
static struct { CUDA_FUNCTIONS(MEMBER) } cuda;
static struct { NCCL_FUNCTIONS(MEMBER) } nccl;

typedef struct rank {
  int device;
  void* stream;
  device_pointer memory;
  void* comm;           /* bare NCCL's */
  hvd_context* context; /* libhvd's */
} rank;

static void* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  return found;
}

/* NULL if it can't be loaded. A variable may name another file. */
static void* load(const char* variable, const char* standard) {
  const char* named = getenv(variable);
  return dlopen(named != NULL && *named != 0 ? named : standard, RTLD_NOW | RTLD_GLOBAL);
}

static int load_cuda(void) {
  void* library = load("HVD_BENCH_CUDA", "libcuda.so.1");
  if (library == NULL) return 0;
#define LOAD(name, parameters) *(void**)&cuda.name = symbol(library, #name);
  CUDA_FUNCTIONS(LOAD)
  return 1;
}

static int load_nccl(void) {
  void* library = load("HVD_BENCH_NCCL", "libnccl.so.2");
  if (library == NULL) return 0;
#define LOAD_NCCL(name, parameters) *(void**)&nccl.name = symbol(library, #name);
  NCCL_FUNCTIONS(LOAD_NCCL)
  return 1;
}

static int failed(int code, const char* what) {
  if (code != 0) fprintf(stderr, "%s: error %d\n", what, code);
  return code != 0;
}
#define DO(call) failed(call, #call)

static int failed_hvd(hvd_status status, const hvd_error* error) {
  if (status != HVD_OK) fprintf(stderr, "%s: %s\n", hvd_status_name(status), error->message);
  return status != HVD_OK;
}

static int prepare(void* self, const bench_buffer* buffer) {
  rank* mine = self;
  return DO(cuda.cuMemAlloc_v2(&mine->memory, buffer->bytes)) ||
         DO(cuda.cuMemcpyHtoDAsync_v2(mine->memory, buffer->data, buffer->bytes, mine->stream)) ||
         DO(cuda.cuStreamSynchronize(mine->stream));
}

static void release(void* self) {
  rank* mine = self;
  if (mine->memory != 0) (void)DO(cuda.cuMemFree_v2(mine->memory));
  mine->memory = 0;
}

static void* data_of(const rank* mine) { return (void*)(uintptr_t)mine->memory; }

static int collective(const rank* mine, const bench_buffer* buffer, int broadcast) {
  static const char* const names[] = {"weights0", "weights1", "weights2", "weights3",
                                      "weights4", "weights5", "weights6", "weights7"}; /* one a root */
  const size_t count = buffer->bytes / sizeof(float);
  hvd_error error = HVD_ERROR_INIT;
  hvd_tensor tensor = HVD_TENSOR_INIT;
  if (mine->comm != NULL) {
    if (broadcast) {
      return DO(nccl.ncclBroadcast(data_of(mine), data_of(mine), count, NCCL_FLOAT32, buffer->root,
                                   mine->comm, mine->stream));
    }
    return DO(nccl.ncclAllReduce(data_of(mine), data_of(mine), count, NCCL_FLOAT32, NCCL_SUM, mine->comm,
                                 mine->stream));
  }
  tensor.data = data_of(mine);
  tensor.dtype = HVD_DTYPE_FLOAT32;
  tensor.ndim = 1;
  tensor.shape[0] = (int64_t)count;
  tensor.memory = HVD_MEMORY_CUDA;
  tensor.device = mine->device;
  tensor.stream = mine->stream;
  if (broadcast) {
    return failed_hvd(hvd_broadcast(mine->context, names[buffer->root % 8], &tensor, buffer->root, &error),
                      &error);
  }
  return failed_hvd(hvd_allreduce(mine->context, "gradients", &tensor, &tensor, HVD_REDUCTION_SUM, &error),
                    &error);
}

/* Until the device is done. Where the result is checked, from the host's buffer and back. */
static int run(rank* mine, const bench_buffer* buffer, int broadcast) {
  if (buffer->checked &&
      DO(cuda.cuMemcpyHtoDAsync_v2(mine->memory, buffer->data, buffer->bytes, mine->stream)))
    return 1;
  if (collective(mine, buffer, broadcast) != 0) return 1;
  if (buffer->checked &&
      DO(cuda.cuMemcpyDtoHAsync_v2(buffer->data, mine->memory, buffer->bytes, mine->stream)))
    return 1;
  return DO(cuda.cuStreamSynchronize(mine->stream));
}

static int broadcast(void* self, const bench_buffer* buffer) { return run(self, buffer, 1); }
static int allreduce(void* self, const bench_buffer* buffer) { return run(self, buffer, 0); }

static const bench_operation operations[] = {{"broadcast", 'b', prepare, broadcast, release},
                                             {"allreduce", 's', prepare, allreduce, release},
                                             {NULL, 0, NULL, NULL, NULL}};

/* With fewer GPUs than ranks NCCL is to take each rank for a host of its own. Before NCCL looks for
 * devices. */
static void share_device(void) {
  char host[64];
  if (getenv("HVD_BENCH_SHARE_GPU") == NULL) return;
  snprintf(host, sizeof host, "hvd-bench-%ld", (long)getpid());
  setenv("NCCL_HOSTID", host, 0);
}

static int take_device(rank* mine, int number) {
  int count = 0, device = 0;
  void* cuda_context = NULL;
  if (DO(cuda.cuInit(0)) || DO(cuda.cuDeviceGetCount(&count)) || count == 0) return 1;
  mine->device = number % count;
  return DO(cuda.cuDeviceGet(&device, mine->device)) ||
         DO(cuda.cuDevicePrimaryCtxRetain(&cuda_context, device)) ||
         DO(cuda.cuCtxPushCurrent_v2(cuda_context)) || DO(cuda.cuStreamCreate(&mine->stream, 1));
}

/* Rank 0's unique id, by a file that has it whole or is not there. */
static int meet(const bench_place* place, unique_id* id) {
  char path[4096], whole[4096];
  time_t deadline = time(NULL) + 60;
  FILE* file;
  int good = 0;
  snprintf(path, sizeof path, "%s/id.part", place->directory);
  snprintf(whole, sizeof whole, "%s/id", place->directory);
  if (place->rank == 0) {
    if (DO(nccl.ncclGetUniqueId(id)) || (file = fopen(path, "wb")) == NULL) return 1;
    good = fwrite(id, sizeof *id, 1, file) == 1;
    return fclose(file) != 0 || !good || rename(path, whole) != 0;
  }
  while ((file = fopen(whole, "rb")) == NULL && time(NULL) < deadline) usleep(1000);
  if (file == NULL) return 1;
  good = fread(id, sizeof *id, 1, file) == 1;
  fclose(file);
  return !good;
}

static int raw(int number, int size) {
  static rank self;
  bench_place place = {number, size, bench_environment("HVD_BENCH_DIRECTORY")};
  unique_id id;
  config settings = {sizeof settings, 0xcafebeef, 21400, 1};
  int status;
  if (take_device(&self, number) != 0 || meet(&place, &id) != 0 ||
      DO(nccl.ncclCommInitRankConfig(&self.comm, size, id, number, &settings))) {
    return 1;
  }
  status = bench_serve(&place, operations, &self);
  return DO(nccl.ncclCommDestroy(self.comm)) || status != 0;
}

static int over_hvd(void) {
  static rank self;
  hvd_error error = HVD_ERROR_INIT;
  int wrong = failed_hvd(hvd_init(NULL, &self.context, &error), &error) ||
              take_device(&self, hvd_local_rank(self.context)) != 0;
  if (!wrong) {
    bench_place place = {hvd_rank(self.context), hvd_size(self.context),
                         bench_environment("HVD_BENCH_DIRECTORY")};
    wrong = bench_serve(&place, operations, &self) != 0 ||
            failed_hvd(hvd_shutdown(self.context, HVD_DEFAULT_TIMEOUT, &error), &error);
  }
  hvd_destroy(self.context);
  return wrong;
}

/* How many GPUs collectives can run on, or why none. */
static int devices(void) {
  int count = 0;
  if (!load_cuda() || !load_nccl()) {
    printf("%s\n", dlerror());
    return 1;
  }
  if (cuda.cuInit(0) != 0 || cuda.cuDeviceGetCount(&count) != 0 || count == 0) {
    printf("no GPU\n");
    return 1;
  }
  printf("%d\n", count);
  return 0;
}

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "devices") == 0) return devices();
  share_device();
  if (!load_cuda() || !load_nccl()) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  if (argc == 4 && strcmp(argv[1], "raw") == 0) return raw(atoi(argv[2]), atoi(argv[3]));
  if (argc == 2 && strcmp(argv[1], "hvd") == 0) return over_hvd();
  fprintf(stderr, "usage: ranks_nccl devices | raw RANK SIZE | hvd\n");
  return 2;
}

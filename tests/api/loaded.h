/* The functions that alone.c uses, found by dlsym. */
#ifndef HVD_TESTS_LOADED_H
#define HVD_TESTS_LOADED_H

#include <dlfcn.h>
#include <stdio.h>

/* clang-format would indent each line further than the one before. */
/* clang-format off */
#define LOADED(X)                                                                                         \
  X(hvd_init) X(hvd_rank) X(hvd_size) X(hvd_generation) X(hvd_local_rank) X(hvd_local_size)               \
  X(hvd_cross_rank) X(hvd_cross_size) X(hvd_allreduce) X(hvd_broadcast) X(hvd_allgather) X(hvd_op_wait)   \
  X(hvd_op_get_output) X(hvd_op_destroy) X(hvd_barrier) X(hvd_broadcast_variables)                        \
  X(hvd_broadcast_object) X(hvd_free) X(hvd_state_create) X(hvd_state_add_tensor)                         \
  X(hvd_state_add_value) X(hvd_state_add_object) X(hvd_run) X(hvd_state_revision) X(hvd_state_restore)    \
  X(hvd_state_commit) X(hvd_state_destroy) X(hvd_shutdown) X(hvd_destroy) X(hvd_status_name)              \
  X(hvd_reducescatter) X(hvd_alltoall) X(hvd_grouped_allreduce) X(hvd_process_set_create)                 \
  X(hvd_process_set_get_ranks) X(hvd_process_set_destroy) X(hvd_submit) X(hvd_join) X(hvd_get_backend)
/* clang-format on */

#define DECLARE(name) static __typeof__(name)* loaded_##name;
LOADED(DECLARE)
#undef DECLARE

static int load_hvd(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
#define FIND(name)                                      \
  *(void**)&loaded_##name = dlsym(library, #name);      \
  if (loaded_##name == NULL) {                          \
    fprintf(stderr, "%s: no symbol %s\n", path, #name); \
    return 1;                                           \
  }
  LOADED(FIND)
#undef FIND
  return 0;
}

#define hvd_init loaded_hvd_init
#define hvd_rank loaded_hvd_rank
#define hvd_size loaded_hvd_size
#define hvd_generation loaded_hvd_generation
#define hvd_local_rank loaded_hvd_local_rank
#define hvd_local_size loaded_hvd_local_size
#define hvd_cross_rank loaded_hvd_cross_rank
#define hvd_cross_size loaded_hvd_cross_size
#define hvd_allreduce loaded_hvd_allreduce
#define hvd_broadcast loaded_hvd_broadcast
#define hvd_allgather loaded_hvd_allgather
#define hvd_op_wait loaded_hvd_op_wait
#define hvd_op_get_output loaded_hvd_op_get_output
#define hvd_op_destroy loaded_hvd_op_destroy
#define hvd_barrier loaded_hvd_barrier
#define hvd_broadcast_variables loaded_hvd_broadcast_variables
#define hvd_broadcast_object loaded_hvd_broadcast_object
#define hvd_free loaded_hvd_free
#define hvd_state_create loaded_hvd_state_create
#define hvd_state_add_tensor loaded_hvd_state_add_tensor
#define hvd_state_add_value loaded_hvd_state_add_value
#define hvd_state_add_object loaded_hvd_state_add_object
#define hvd_run loaded_hvd_run
#define hvd_state_revision loaded_hvd_state_revision
#define hvd_state_restore loaded_hvd_state_restore
#define hvd_state_commit loaded_hvd_state_commit
#define hvd_state_destroy loaded_hvd_state_destroy
#define hvd_shutdown loaded_hvd_shutdown
#define hvd_destroy loaded_hvd_destroy
#define hvd_status_name loaded_hvd_status_name
#define hvd_reducescatter loaded_hvd_reducescatter
#define hvd_alltoall loaded_hvd_alltoall
#define hvd_grouped_allreduce loaded_hvd_grouped_allreduce
#define hvd_process_set_create loaded_hvd_process_set_create
#define hvd_process_set_get_ranks loaded_hvd_process_set_get_ranks
#define hvd_process_set_destroy loaded_hvd_process_set_destroy
#define hvd_submit loaded_hvd_submit
#define hvd_join loaded_hvd_join
#define hvd_get_backend loaded_hvd_get_backend

#endif

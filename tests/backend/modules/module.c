/* A backend for one rank, as a third party would write it: C99 and hvd/backend.h alone. The definitions
 * HVD_TEST_... break it in one way each. */
#include <stdlib.h>
#include <string.h>

#include "hvd/backend.h"

#if defined(__GNUC__)
#define EXPORT __attribute__((visibility("default")))
#else
#define EXPORT
#endif

#ifndef HVD_TEST_NAME
#define HVD_TEST_NAME "tiny"
#endif
#ifndef HVD_TEST_MEMORIES
#define HVD_TEST_MEMORIES 1
#endif
#ifndef HVD_TEST_REFUSES
#define HVD_TEST_REFUSES "refuse"
#endif

typedef struct instance {
  hvd_backend_host host;
  int connected;
} instance;

static hvd_status fail(hvd_error *error, hvd_status status, const char *message) {
  if (error != NULL && error->struct_size >= sizeof(*error)) {
    error->status = status;
    strncpy(error->message, message, sizeof(error->message) - 1);
  }
  return status;
}

static hvd_status tiny_open(const hvd_backend_host *host, const hvd_backend_option *options,
                            size_t option_count, void **ret_instance, hvd_error *error) {
  size_t i;
  instance *self;
  for (i = 0; i < option_count; ++i) {
    if (strcmp(options[i].key, HVD_TEST_REFUSES) == 0) return fail(error, HVD_INVALID, options[i].value);
  }
  self = (instance *)calloc(1, sizeof(instance));
  if (self == NULL) return fail(error, HVD_INTERNAL, "out of memory");
  self->host = *host;
  host->log(host->context, HVD_LOG_INFO, "open");
  *ret_instance = self;
  return HVD_OK;
}

static hvd_status tiny_address(void *self, void *data, size_t *size, hvd_error *error) {
  const size_t wanted = 5000; /* more than is offered at first */
  (void)self;
  if (*size < wanted) {
    *size = wanted;
    return fail(error, HVD_INVALID, "too small a room");
  }
  memset(data, 7, wanted);
  *size = wanted;
  return HVD_OK;
}

static hvd_status tiny_connect(void *self, const hvd_backend_group *group, hvd_error *error) {
  instance *me = (instance *)self;
  char value[8];
  size_t size = sizeof(value);
#ifdef HVD_TEST_CONNECT_TIMES_OUT
  if (me->host.kv_get(me->host.context, group->generation, "absent", HVD_SECOND, value, &size, error) !=
      HVD_OK)
    return fail(error, HVD_TIMEOUT, "nobody has come");
#endif
  if (group->size != 1) return fail(error, HVD_UNSUPPORTED, "for one rank only");
  if (me->host.kv_set(me->host.context, group->generation, "key", "value", 5, error) != HVD_OK)
    return HVD_PEER_LOST;
  if (me->host.kv_get(me->host.context, group->generation, "key", 100 * HVD_MILLISECOND, value, &size,
                      error) != HVD_OK) {
    return HVD_PEER_LOST;
  }
  if (size != 5 || memcmp(value, "value", 5) != 0)
    return fail(error, HVD_INTERNAL, "kv_get gave something else");
  me->connected = 1;
  me->host.message(me->host.context, group->generation, 0, "hello", 5);
  me->host.failure(me->host.context, group->generation, -1, "just to say");
  return HVD_OK;
}

static hvd_status tiny_submit(void *self, const hvd_backend_op *op, hvd_error *error) {
  if (!((instance *)self)->connected) return fail(error, HVD_PEER_LOST, "not connected");
  op->done(op->done_context, HVD_OK, NULL);
  return HVD_OK;
}

static hvd_status tiny_send(void *self, int32_t destination, const void *data, size_t size,
                            hvd_error *error) {
  (void)self, (void)destination, (void)data, (void)size;
  return fail(error, HVD_INVALID, "there is nobody else");
}

static void tiny_abort(void *self, uint64_t generation) {
  (void)generation;
  ((instance *)self)->connected = 0;
}

static void tiny_disconnect(void *self) { ((instance *)self)->connected = 0; }
static void tiny_close(void *self) { free(self); }

static void tiny_detail(void *self, char *text, size_t size) {
  (void)self;
  strncpy(text, "tiny", size - 1);
}

#ifndef HVD_TEST_NO_INIT
EXPORT hvd_status hvd_backend_init(uint32_t abi_version, hvd_backend_table *table, hvd_error *error) {
#ifdef HVD_TEST_OTHER_ABI
  const uint32_t mine = 999;
#else
  const uint32_t mine = HVD_BACKEND_ABI_VERSION;
#endif
  hvd_backend_table full;
  if (abi_version != mine) return fail(error, HVD_UNSUPPORTED, "this module speaks another version");
#ifdef HVD_TEST_UNAVAILABLE
  return fail(error, HVD_UNAVAILABLE, "the device is on holiday");
#endif
  memset(&full, 0, sizeof(full));
  full.struct_size = sizeof(full);
#ifdef HVD_TEST_SHORT_TABLE
  full.struct_size = 64;
#endif
  full.description.struct_size = sizeof(full.description);
#ifndef HVD_TEST_NO_NAME
  full.description.name = HVD_TEST_NAME;
#endif
  full.description.version = "1";
  full.description.memories = HVD_TEST_MEMORIES;
  full.description.dtypes = (uint64_t)1 << HVD_DTYPE_FLOAT32;
  full.description.collectives = (uint64_t)1 << HVD_COLLECTIVE_BARRIER;
#if !defined(HVD_TEST_NO_MESSAGES) && (HVD_TEST_MEMORIES & 1)
  full.description.messages = 1;
#endif
#ifdef HVD_TEST_LOCAL
  full.description.local = 1;
#endif
  full.description.max_instances = 2;
  full.open = tiny_open;
  full.address = tiny_address;
  full.connect = tiny_connect;
  full.submit = tiny_submit;
  full.send_message = tiny_send;
#ifndef HVD_TEST_NO_ABORT
  full.abort = tiny_abort;
#else
  (void)tiny_abort;
#endif
  full.disconnect = tiny_disconnect;
  full.close = tiny_close;
  full.detail = tiny_detail;
  memcpy(table, &full, table->struct_size < sizeof(full) ? table->struct_size : sizeof(full));
  return HVD_OK;
}
#else
EXPORT void *hvd_test_no_backend(void);
void *hvd_test_no_backend(void) {
  static void *functions[9];
  functions[0] = (void *)(size_t)tiny_open;
  functions[1] = (void *)(size_t)tiny_address;
  functions[2] = (void *)(size_t)tiny_connect;
  functions[3] = (void *)(size_t)tiny_submit;
  functions[4] = (void *)(size_t)tiny_send;
  functions[5] = (void *)(size_t)tiny_abort;
  functions[6] = (void *)(size_t)tiny_disconnect;
  functions[7] = (void *)(size_t)tiny_close;
  functions[8] = (void *)(size_t)tiny_detail;
  return functions;
}
#endif

/* DLPack's structures (dlpack.h, version 1), of which only what is used is named. */
#ifndef HVD_PYTHON_DLPACK_H
#define HVD_PYTHON_DLPACK_H

#include <stdint.h>

enum { DL_CPU = 1 };

typedef struct dl_tensor {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed { /* a capsule "dltensor" */
  dl_tensor tensor;
  void *context;
  void (*deleter)(struct dl_managed *);
} dl_managed;

typedef struct dl_versioned { /* a capsule "dltensor_versioned" */
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct dl_versioned *);
  uint64_t flags;
  dl_tensor tensor;
} dl_versioned;

typedef struct dl_api { /* the table of functions of a type (C exchange API, 1.3) */
  uint32_t major, minor;
  const struct dl_api *previous;
  void *allocate, *export_managed, *import_managed;
  int (*view)(void *object, dl_tensor *out); /* borrowed: no memory is made */
} dl_api;

#endif

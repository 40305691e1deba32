/* Kinds of arrays that the module reads itself. Included by the files that read them: numpy.c, torch.c. */
#ifndef HVD_PYTHON_KINDS_H
#define HVD_PYTHON_KINDS_H

#include "calls.h"

/* A method without arguments: the C function behind it where there is one, which saves looking it up and
 * calling it as an object. Arrays that are read have exactly the type that it was taken from. */
typedef struct method {
  PyObject *name;
  PyTypeObject *type;
  PyCFunction function;
} method;

/* An attribute, in the same way. */
typedef struct attribute {
  PyObject *name, *descriptor;
  descrgetfunc get;
} attribute;

/* Arrays of exactly one type, by what their library promises to C. */
typedef struct kind kind;
struct kind {
  PyTypeObject *type;
  /* Borrows the array: 1; 0: the Python code shall do it, or say what is wrong; -1: an exception. */
  int (*read)(const kind *of, PyObject *array, int writable, hvd_tensor *tensor, loan *keep);
  /* PyTorch's: `api`, or without one the two lines after it */
  const struct dl_api *api;
  attribute dtype, shape, is_cpu;
  method data_ptr, is_contiguous;
  attribute requires_grad, is_leaf;
  method is_neg, untyped_storage, storage_offset, nbytes;
};

/* Of DLPack's type code and number of bits; 0: none of the library's. */
hvd_dtype dtype_of(uint8_t code, uint8_t bits);

/* Fills in how arrays of found->type are read: 1; 0: they can't be, and an exception may be set. */
int kind_of_numpy(kind *found);
int kind_of_torch(kind *found, PyObject *example);

#endif

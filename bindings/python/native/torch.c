/* PyTorch's tensors as the library's descriptors. */
#include <string.h>

#include "dlpack.h"
#include "kinds.h"

static int method_find(method *found, PyObject *of, const char *name) {
  found->type = Py_TYPE(of);
  found->function = NULL;
  found->name = PyUnicode_InternFromString(name);
  PyObject *bound = found->name == NULL ? NULL : PyObject_GetAttr(of, found->name);
  if (bound == NULL) return -1;
  if (Py_IS_TYPE(bound, &PyCFunction_Type) && PyCFunction_GetFlags(bound) == METH_NOARGS &&
      PyCFunction_GetSelf(bound) == of)
    found->function = PyCFunction_GetFunction(bound);
  Py_DECREF(bound);
  return 0;
}

static PyObject *method_call(const method *m, PyObject *of) {
  if (m->function != NULL && Py_TYPE(of) == m->type) return m->function(of, NULL);
  return PyObject_CallMethodObjArgs(of, m->name, NULL);
}

static int attribute_find(attribute *found, PyTypeObject *type, const char *name) {
  found->name = PyUnicode_InternFromString(name);
  found->descriptor = found->name == NULL ? NULL : PyObject_GetAttr((PyObject *)type, found->name);
  if (found->descriptor == NULL) return -1;
  found->get = Py_IS_TYPE(found->descriptor, &PyGetSetDescr_Type)
                   ? (descrgetfunc)PyType_GetSlot(&PyGetSetDescr_Type, Py_tp_descr_get)
                   : NULL;
  return 0;
}

/* Takes a reference: 1, 0, or -1. */
static int truth(PyObject *of) {
  if (of == NULL) return -1;
  int result = of == Py_True ? 1 : of == Py_False ? 0 : PyObject_IsTrue(of);
  Py_DECREF(of);
  return result;
}

static PyObject *attribute_get(const attribute *f, PyObject *of) {
  return f->get != NULL ? f->get(f->descriptor, of, (PyObject *)Py_TYPE(of)) : PyObject_GetAttr(of, f->name);
}

static int attribute_is_true(const attribute *f, PyObject *of) { return truth(attribute_get(f, of)); }

/* Takes a reference: the number, or -1. */
static long long whole(PyObject *of) {
  if (of == NULL) return -1;
  long long result = PyLong_AsLongLong(of);
  Py_DECREF(of);
  return result;
}

/* ---- Tensors that come again ---- */

/* PyTorch tells by calls of a tensor's methods alone what its storage is, and whether it is a lazy view: that
 * takes longer than all the rest. It is remembered of tensors that come twice, for as long as object, storage
 * and address are the same. (A tensor.data that became a lazy view of its own memory would go unseen: PyTorch
 * makes such a view in a private function alone.)
 *
 * A slot for each address of an object, by a hash. Nothing is kept alive. */
typedef struct seen {
  const PyObject *tensor; /* compared, never followed */
  const void *data;
  int64_t bytes;
  PyObject *itself, *storage; /* weak references, or NULL */
  unsigned wait, waits;       /* as often it shall come before there are; how often it had to in the end */
} seen;

enum { SEEN_BITS = 12, LONGEST_WAIT = 1024 };
static seen table[1 << SEEN_BITS];

static seen *slot_of(const PyObject *tensor) {
  return &table[((uint64_t)(uintptr_t)tensor >> 4) * 0x9e3779b97f4a7c15u >> (64 - SEEN_BITS)];
}

static void forget(seen *s) {
  Py_CLEAR(s->itself);
  Py_CLEAR(s->storage);
}

/* The storage (a new reference) of a tensor that came before and is as it was; NULL: it must be asked. */
static PyObject *storage_as_before(seen *s, const PyObject *tensor, const void *data, int64_t bytes) {
  if (s->itself == NULL) return NULL;
  if (s->tensor == tensor && s->data == data && s->bytes == bytes &&
      PyWeakref_GetObject(s->itself) == tensor) {
    PyObject *storage = PyWeakref_GetObject(s->storage);
    if (storage != NULL && storage != Py_None) {
      s->waits = 1;
      Py_INCREF(storage);
      return storage;
    }
  }
  forget(s); /* it was in vain: what comes once at this address may do so again */
  s->waits = s->waits < LONGEST_WAIT ? 2 * s->waits : LONGEST_WAIT;
  return NULL;
}

/* The tensor has been found to be good. */
static void remember(seen *s, PyObject *tensor, const void *data, int64_t bytes, PyObject *storage) {
  if (s->tensor != tensor || s->data != data || s->bytes != bytes) {
    forget(s);
    s->tensor = tensor;
    s->data = data;
    s->bytes = bytes;
    s->waits = s->waits > 0 ? s->waits : 1;
    s->wait = s->waits;
    return;
  }
  if (s->wait > 0 && --s->wait > 0) return;
  s->wait = s->waits;
  s->itself = PyWeakref_NewRef(tensor, NULL);
  s->storage = s->itself == NULL ? NULL : PyWeakref_NewRef(storage, NULL);
  if (s->storage == NULL) { /* no memory, or a type that can't be referred to so */
    PyErr_Clear();
    forget(s);
  }
}

/* ---- Reading ---- */

/* The tensor's memory, and what keeps it: 1; 0: the Python code shall say. dtype and shape are known. */
static int take(const kind *of, PyObject *array, int writable, void *data, int64_t count, int64_t size,
                hvd_tensor *tensor, loan *keep) {
  if (writable) {
    int wants = attribute_is_true(&of->requires_grad, array);
    if (wants > 0) wants = attribute_is_true(&of->is_leaf, array) == 1 ? 0 : 1;
    if (wants != 0) return 0;
  }
  const int64_t bytes = count * size;
  seen *before = slot_of(array);
  /* The storage is kept, as tensor.data = other lets go of it. */
  keep->more = storage_as_before(before, array, data, bytes);
  if (keep->more == NULL) {
    if (of->api == NULL && attribute_is_true(&of->is_cpu, array) != 1) return 0;
    if (truth(method_call(&of->is_neg, array)) != 0) return 0;
    keep->more = method_call(&of->untyped_storage, array);
    if (keep->more == NULL) return 0;
    long long have = whole(method_call(&of->nbytes, keep->more));
    long long offset = whole(method_call(&of->storage_offset, array));
    if (have < 0 || offset < 0 || offset * size + bytes > have || (data == NULL && count > 0)) return 0;
    remember(before, array, data, bytes, keep->more);
  }
  tensor->data = data;
  return 1;
}

static int read_by_dlpack(const kind *of, PyObject *array, int writable, hvd_tensor *tensor, loan *keep) {
  dl_tensor dl;
  memset(&dl, 0, sizeof dl);
  if (of->api->view(array, &dl) != 0) { /* sparse, of no storage, ... */
    PyErr_Clear();
    return 0;
  }
  tensor->dtype = dl.lanes == 1 ? dtype_of(dl.code, dl.bits) : 0;
  if (tensor->dtype == 0 || dl.device_type != 1 || dl.ndim > HVD_MAX_DIMS) return 0;
  int64_t count = 1;
  for (int i = dl.ndim - 1; i >= 0; i--) {
    if (dl.strides != NULL && dl.shape[i] != 1 && dl.strides[i] != count)
      return 0; /* also some that have no elements */
    count *= dl.shape[i];
    tensor->shape[i] = dl.shape[i];
  }
  tensor->ndim = dl.ndim;
  int done = take(of, array, writable, (char *)dl.data + dl.byte_offset, count, dl.bits / 8, tensor, keep);
  if (!done) PyErr_Clear();
  return done;
}

/* ---- PyTorch before 2.10, which has no such table ---- */

static struct {
  PyObject *is;
  hvd_dtype dtype;
  int size;
} dtypes[] = {{NULL, HVD_DTYPE_FLOAT32, 4}, {NULL, HVD_DTYPE_BFLOAT16, 2}, {NULL, HVD_DTYPE_FLOAT16, 2},
              {NULL, HVD_DTYPE_INT64, 8},   {NULL, HVD_DTYPE_FLOAT64, 8},  {NULL, HVD_DTYPE_INT32, 4},
              {NULL, HVD_DTYPE_UINT8, 1},   {NULL, HVD_DTYPE_INT8, 1},     {NULL, HVD_DTYPE_BOOL, 1},
              {NULL, HVD_DTYPE_INT16, 2}};
static const char *const dtype_names[] = {"float32", "bfloat16", "float16", "int64", "float64",
                                          "int32",   "uint8",    "int8",    "bool",  "int16"};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };
_Static_assert(DTYPES == sizeof dtype_names / sizeof *dtype_names, "a name for each");

static int find_dtypes(void) {
  PyObject *torch = PyImport_ImportModule("torch");
  for (int i = 0; torch != NULL && i < DTYPES; i++) {
    if (dtypes[i].is == NULL) dtypes[i].is = PyObject_GetAttrString(torch, dtype_names[i]);
    if (dtypes[i].is == NULL) Py_CLEAR(torch);
  }
  Py_XDECREF(torch);
  return torch == NULL ? -1 : 0;
}

/* Takes a reference to a shape: the number of elements; -1: it is none, or of too many dimensions. */
static int64_t read_shape(PyObject *shape, hvd_tensor *tensor) {
  int64_t count = -1;
  Py_ssize_t dims = shape != NULL && PyTuple_Check(shape) ? PyTuple_Size(shape) : HVD_MAX_DIMS + 1;
  if (dims <= HVD_MAX_DIMS) {
    count = 1;
    for (Py_ssize_t i = 0; i < dims && count >= 0; i++) {
      tensor->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
      count = tensor->shape[i] < 0 ? -1 : count * tensor->shape[i];
    }
    tensor->ndim = (int32_t)dims;
  }
  Py_XDECREF(shape);
  return count;
}

static int read_by_methods(const kind *of, PyObject *array, int writable, hvd_tensor *tensor, loan *keep) {
  PyObject *type = attribute_get(&of->dtype, array);
  int i = 0;
  while (i < DTYPES && dtypes[i].is != type) i++;
  Py_XDECREF(type);
  int done = 0;
  if (i < DTYPES) {
    tensor->dtype = dtypes[i].dtype;
    int64_t count = read_shape(attribute_get(&of->shape, array), tensor);
    if (count >= 0 && truth(method_call(&of->is_contiguous, array)) == 1) {
      PyObject *address = method_call(&of->data_ptr, array);
      void *data = address == NULL ? NULL : PyLong_AsVoidPtr(address);
      Py_XDECREF(address);
      done = PyErr_Occurred() == NULL && take(of, array, writable, data, count, dtypes[i].size, tensor, keep);
    }
  }
  if (!done) PyErr_Clear();
  return done;
}

static int find_methods(kind *found, PyObject *example) {
  found->read = read_by_methods;
  return find_dtypes() == 0 && attribute_find(&found->dtype, found->type, "dtype") == 0 &&
         attribute_find(&found->shape, found->type, "shape") == 0 &&
         attribute_find(&found->is_cpu, found->type, "is_cpu") == 0 &&
         method_find(&found->data_ptr, example, "data_ptr") == 0 &&
         method_find(&found->is_contiguous, example, "is_contiguous") == 0;
}

int kind_of_torch(kind *found, PyObject *example) {
  PyObject *capsule = PyObject_GetAttrString((PyObject *)found->type, "__dlpack_c_exchange_api__");
  found->api = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_XDECREF(capsule);
  while (found->api != NULL && found->api->major != 1) found->api = found->api->previous; /* a newer one's */
  if (found->api != NULL && found->api->view == NULL) found->api = NULL;
  PyErr_Clear();
  found->read = read_by_dlpack;
  if (found->api == NULL && !find_methods(found, example)) return 0;
  if (attribute_find(&found->requires_grad, found->type, "requires_grad") != 0 ||
      attribute_find(&found->is_leaf, found->type, "is_leaf") != 0 ||
      method_find(&found->is_neg, example, "is_neg") != 0 ||
      method_find(&found->untyped_storage, example, "untyped_storage") != 0 ||
      method_find(&found->storage_offset, example, "storage_offset") != 0)
    return 0;
  PyObject *storage = method_call(&found->untyped_storage, example);
  if (storage == NULL) return 0; /* of a tensor without one */
  int done = method_find(&found->nbytes, storage, "nbytes");
  Py_DECREF(storage);
  return done == 0;
}

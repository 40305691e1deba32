/* Arrays as the library's descriptors, and what keeps their memory while an operation uses it.
 *
 * Arrays of exactly the types that register_type has been told are read here, by what their libraries
 * promise to C. All others, and every array that something is wrong with, go to the Python code
 * (hvd/tensors.py), which knows why. */
#include <string.h>

#include "calls.h"

enum { MOST_TYPES = 8, MOST_DTYPES = 32 };

/* Borrows the array: 1; 0: the Python code shall do it, or say what is wrong; -1: an exception. */
typedef struct kind kind;
typedef int (*reader)(const kind *of, PyObject *array, int writable, hvd_tensor *tensor, loan *keep);

static int read_numpy(const kind *of, PyObject *array, int writable, hvd_tensor *tensor, loan *keep);
static int read_torch(const kind *of, PyObject *array, int writable, hvd_tensor *tensor, loan *keep);

/* ---- Dtypes ---- */

static hvd_dtype dtype_of(uint8_t code, uint8_t bits) { /* DLPack's */
  static const hvd_dtype integers[2][4] = {
      {HVD_DTYPE_INT8, HVD_DTYPE_INT16, HVD_DTYPE_INT32, HVD_DTYPE_INT64},
      {HVD_DTYPE_UINT8, HVD_DTYPE_UINT16, HVD_DTYPE_UINT32, HVD_DTYPE_UINT64}};
  int size = bits == 8 ? 0 : bits == 16 ? 1 : bits == 32 ? 2 : bits == 64 ? 3 : -1;
  if (size < 0) return 0;
  if (code < 2) return integers[code][size];
  if (code == 2)
    return size == 1 ? HVD_DTYPE_FLOAT16 : size == 2 ? HVD_DTYPE_FLOAT32 : size == 3 ? HVD_DTYPE_FLOAT64 : 0;
  if (code == 4 && size == 1) return HVD_DTYPE_BFLOAT16;
  return code == 6 && size == 0 ? HVD_DTYPE_BOOL : 0;
}

static hvd_dtype dtype_of_format(const char *format, Py_ssize_t size) {
  if (format == NULL || format[0] == '\0' || format[1] != '\0') return 0;
  if (strchr("bhilqn", format[0]) != NULL) return dtype_of(0, (uint8_t)(8 * size));
  if (strchr("BHILQN", format[0]) != NULL) return dtype_of(1, (uint8_t)(8 * size));
  if (strchr("efd", format[0]) != NULL) return dtype_of(2, (uint8_t)(8 * size));
  return format[0] == '?' && size == 1 ? HVD_DTYPE_BOOL : 0;
}

/* ---- NumPy ---- */

/* An array of NumPy's, which its C interface has had in this form since 1.7, and which every module that is
 * built with its headers reads. numpy_has_layout() asks for the interface's version. */
typedef struct numpy_array {
  PyObject_HEAD char *data;
  int ndim;
  Py_ssize_t *shape, *strides;
  PyObject *base, *dtype;
  int flags;
} numpy_array;
enum {
  NUMPY_CONTIGUOUS = 0x1,
  NUMPY_ALIGNED = 0x100,
  NUMPY_WRITABLE = 0x400,
  NUMPY_WARNS = (int)0x80000000u
};

static int numpy_has_layout(void) {
  static const char *const modules[] = {"numpy._core._multiarray_umath", "numpy.core._multiarray_umath"};
  unsigned version = 0;
  for (int i = 0; i < 2 && version == 0; i++) {
    PyObject *name = PyUnicode_FromString(modules[i]);
    PyObject *module = name == NULL ? NULL : PyImport_GetModule(name);
    PyObject *capsule = module == NULL ? NULL : PyObject_GetAttrString(module, "_ARRAY_API");
    void *const *table = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, NULL);
    unsigned (*of_interface)(void) = NULL;
    if (table != NULL) memcpy(&of_interface, &table[0], sizeof of_interface); /* PyArray_GetNDArrayCVersion */
    if (of_interface != NULL) version = of_interface();
    Py_XDECREF(capsule);
    Py_XDECREF(module);
    Py_XDECREF(name);
    PyErr_Clear();
  }
  return version == 0x01000009 || version == 0x02000000; /* NumPy 1.x, 2.x */
}

/* NumPy's dtype objects, of which there is one for each dtype, and the library's dtypes: a buffer of each has
 * told. */
static struct {
  PyObject *object;
  hvd_dtype dtype;
} dtypes[MOST_DTYPES];
static int dtype_count;

static hvd_dtype dtype_of_object(const PyObject *object) {
  for (int i = 0; i < dtype_count; i++) {
    if (dtypes[i].object == object) return dtypes[i].dtype;
  }
  return 0;
}

static int read_buffer(PyObject *array, int writable, hvd_tensor *tensor, loan *keep) {
  if (PyObject_GetBuffer(array, &keep->view,
                         PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) != 0) {
    PyErr_Clear();
    return 0;
  }
  const Py_buffer *view = &keep->view;
  keep->exporter = view->obj;
  hvd_dtype dtype = dtype_of_format(view->format, view->itemsize);
  if (dtype == 0 || view->ndim > HVD_MAX_DIMS || (view->buf == NULL && view->len > 0)) return 0;
  tensor->data = view->buf;
  tensor->dtype = dtype;
  tensor->ndim = view->ndim;
  for (int i = 0; i < view->ndim; i++) tensor->shape[i] = view->shape[i];
  return 1;
}

static int read_numpy(const kind *of, PyObject *array, int writable, hvd_tensor *tensor, loan *keep) {
  (void)of;
  const numpy_array *inner = (const numpy_array *)array;
  const int needed = NUMPY_CONTIGUOUS | NUMPY_ALIGNED | (writable ? NUMPY_WRITABLE : 0);
  hvd_dtype dtype = dtype_of_object(inner->dtype);
  if (dtype != 0 && (inner->flags & (needed | NUMPY_WARNS)) == needed && inner->ndim <= HVD_MAX_DIMS &&
      inner->data != NULL) {
    tensor->data = inner->data;
    tensor->dtype = dtype;
    tensor->ndim = inner->ndim;
    for (int i = 0; i < inner->ndim; i++) tensor->shape[i] = inner->shape[i];
  } else {
    int done = read_buffer(array, writable, tensor, keep);
    if (done != 1) return done;
    if (dtype == 0 && dtype_count < MOST_DTYPES) {
      Py_INCREF(inner->dtype); /* as long as the process */
      dtypes[dtype_count].object = inner->dtype;
      dtypes[dtype_count++].dtype = tensor->dtype;
    }
  }
  keep->more =
      PyWeakref_NewRef(array, NULL); /* with which it can't be resized, not even with refcheck=False */
  return keep->more != NULL ? 1 : -1;
}

/* The same without the layout. */
static int read_unknown_numpy(const kind *of, PyObject *array, int writable, hvd_tensor *tensor, loan *keep) {
  (void)of;
  int done = read_buffer(array, writable, tensor, keep);
  if (done != 1) return done;
  keep->more = PyWeakref_NewRef(array, NULL);
  return keep->more != NULL ? 1 : -1;
}

/* ---- PyTorch ---- */

/* DLPack's table of functions, as of version 1.3, of which only what is used is named. */
typedef struct dl_tensor {
  void *data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} dl_tensor;

typedef struct dl_api {
  uint32_t major, minor;
  void *previous, *allocate, *export_managed, *import_managed;
  int (*view)(void *object, dl_tensor *out); /* borrowed: no memory is made */
} dl_api;

/* A method without arguments: the C function behind it where there is one, which saves looking it up and
 * calling it as an object. Arrays that are read here have exactly the type that it was taken from. */
typedef struct method {
  PyObject *name;
  PyTypeObject *type;
  PyCFunction function;
} method;

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

/* A flag that is an attribute, in the same way. */
typedef struct flag {
  PyObject *name, *descriptor;
  descrgetfunc get;
} flag;

static int flag_find(flag *found, PyTypeObject *type, const char *name) {
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

static int flag_is_set(const flag *f, PyObject *of) {
  return truth(f->get != NULL ? f->get(f->descriptor, of, (PyObject *)Py_TYPE(of))
                              : PyObject_GetAttr(of, f->name));
}

/* Takes a reference: the number, or -1. */
static long long whole(PyObject *of) {
  if (of == NULL) return -1;
  long long result = PyLong_AsLongLong(of);
  Py_DECREF(of);
  return result;
}

struct kind {
  PyTypeObject *type;
  reader read;
  /* PyTorch's */
  const dl_api *api;
  flag requires_grad, is_leaf;
  method is_neg, untyped_storage, storage_offset, nbytes;
};

static int read_torch(const kind *of, PyObject *array, int writable, hvd_tensor *tensor, loan *keep) {
  dl_tensor dl;
  memset(&dl, 0, sizeof dl);
  if (of->api->view(array, &dl) != 0) goto other; /* sparse, of no storage, ... */
  hvd_dtype dtype = dl.lanes == 1 ? dtype_of(dl.code, dl.bits) : 0;
  if (dtype == 0 || dl.device_type != 1 || dl.ndim > HVD_MAX_DIMS) return 0;
  int64_t count = 1;
  for (int i = dl.ndim - 1; i >= 0; i--) {
    if (dl.strides != NULL && dl.shape[i] != 1 && dl.strides[i] != count)
      return 0; /* also some that have no elements */
    count *= dl.shape[i];
    tensor->shape[i] = dl.shape[i];
  }
  if (writable) {
    int wants = flag_is_set(&of->requires_grad, array);
    if (wants > 0) wants = flag_is_set(&of->is_leaf, array) == 1 ? 0 : 1;
    if (wants != 0) goto other;
  }
  if (truth(method_call(&of->is_neg, array)) != 0) goto other;
  /* The storage, as tensor.data = other lets go of it. */
  keep->more = method_call(&of->untyped_storage, array);
  if (keep->more == NULL) goto other;
  long long have = whole(method_call(&of->nbytes, keep->more));
  long long before = whole(method_call(&of->storage_offset, array));
  if (have < 0 || before < 0 || (before + count) * (dl.bits / 8) > have) goto other;
  tensor->data = (char *)dl.data + dl.byte_offset;
  if (tensor->data == NULL && count > 0) goto other;
  tensor->dtype = dtype;
  tensor->ndim = dl.ndim;
  return 1;
other:
  PyErr_Clear();
  return 0;
}

/* Of a tensor: whether its type can be read here. */
static int kind_of_torch(kind *found, PyObject *example) {
  PyObject *capsule = PyObject_GetAttrString((PyObject *)found->type, "__dlpack_c_exchange_api__");
  found->api = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_XDECREF(capsule);
  if (found->api == NULL || found->api->major != 1 || found->api->view == NULL) return 0;
  found->read = read_torch;
  if (flag_find(&found->requires_grad, found->type, "requires_grad") != 0 ||
      flag_find(&found->is_leaf, found->type, "is_leaf") != 0 ||
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

/* ---- All kinds ---- */

static kind kinds[MOST_TYPES];
static int kind_count;
static PyObject *s_tensor;

int loans_prepare(void) {
  if (s_tensor == NULL) s_tensor = PyUnicode_InternFromString("tensor");
  return s_tensor == NULL ? -1 : 0;
}

/* register_type(example, "numpy" or "torch"): whether arrays of exactly its type are read here from now
 * on. */
PyObject *register_type(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *example;
  const char *name;
  if (!PyArg_ParseTuple(arguments, "Os", &example, &name)) return NULL;
  int torch = strcmp(name, "torch") == 0;
  if (!torch && strcmp(name, "numpy") != 0)
    return PyErr_Format(PyExc_ValueError, "kind '%s': expected 'numpy' or 'torch'", name);
  for (int i = 0; i < kind_count; i++) {
    if (kinds[i].type == Py_TYPE(example)) Py_RETURN_TRUE;
  }
  if (kind_count == MOST_TYPES) Py_RETURN_FALSE;
  kind found; /* its names and descriptors stay as long as the process, in the rare case of no use too */
  memset(&found, 0, sizeof found);
  found.type = Py_TYPE(example);
  int usable = 1;
  if (torch) {
    usable = kind_of_torch(&found, example);
  } else {
    found.read = numpy_has_layout() ? read_numpy : read_unknown_numpy;
  }
  PyErr_Clear();
  if (!usable) Py_RETURN_FALSE;
  Py_INCREF((PyObject *)found.type);
  kinds[kind_count++] = found;
  Py_RETURN_TRUE;
}

/* By borrow(object, writable), whose result has a ctypes structure: 0; -1 with an exception. */
static int read_slowly(PyObject *object, int writable, hvd_tensor *tensor, loan *keep) {
  PyObject *lent;
  if (Py_TYPE(object) == (PyTypeObject *)hvd.borrowed_type) {
    lent = object;
    Py_INCREF(lent);
  } else {
    lent = PyObject_CallFunctionObjArgs(hvd.borrow, object, writable ? Py_True : Py_False, NULL);
  }
  if (lent == NULL) return -1;
  keep->more = lent;
  PyObject *structure = PyObject_GetAttr(lent, s_tensor);
  Py_buffer view;
  if (structure == NULL) return -1;
  int status = PyObject_GetBuffer(structure, &view, PyBUF_SIMPLE);
  Py_DECREF(structure);
  if (status != 0) return -1;
  if (view.len != (Py_ssize_t)sizeof(hvd_tensor)) {
    PyErr_Format(PyExc_SystemError, "a tensor's descriptor of %zd bytes: expected %zd", view.len,
                 (Py_ssize_t)sizeof(hvd_tensor));
    status = -1;
  } else {
    memcpy(tensor, view.buf, sizeof *tensor);
  }
  PyBuffer_Release(&view);
  return status;
}

static void loan_end(loan *l) {
  if (l->exporter != NULL) PyBuffer_Release(&l->view);
  l->exporter = NULL;
  Py_CLEAR(l->more);
}

static int lend(loans *l, PyObject *object, int writable) {
  static const hvd_tensor blank = HVD_TENSOR_INIT;
  loan *keep = &l->items[l->count];
  hvd_tensor *tensor = &l->tensors[l->count];
  keep->more = keep->exporter = NULL;
  *tensor = blank;
  Py_INCREF(object);
  keep->owner = object;
  l->count++; /* from here on loans_release lets go of it */
  for (int i = 0; i < kind_count; i++) {
    if (kinds[i].type != Py_TYPE(object)) continue;
    int done = kinds[i].read(&kinds[i], object, writable, tensor, keep);
    if (done != 0) return done < 0 ? -1 : 0;
    loan_end(keep);
    *tensor = blank;
    break;
  }
  return read_slowly(object, writable, tensor, keep);
}

static void loans_init(loans *l) {
  l->count = 0;
  l->items = l->few_items;
  l->tensors = l->few_tensors;
}

static int loans_reserve(loans *l, size_t count) {
  if (count <= FEW) return 0;
  loan *items = PyMem_Malloc(count * sizeof *items);
  hvd_tensor *tensors = PyMem_Malloc(count * sizeof *tensors);
  if (items == NULL || tensors == NULL) {
    PyMem_Free(items);
    PyMem_Free(tensors);
    PyErr_NoMemory();
    return -1;
  }
  l->items = items;
  l->tensors = tensors;
  return 0;
}

static void loans_release(loans *l) {
  for (size_t i = 0; i < l->count; i++) {
    loan_end(&l->items[i]);
    Py_DECREF(l->items[i].owner);
  }
  if (l->items != l->few_items) PyMem_Free(l->items);
  if (l->tensors != l->few_tensors) PyMem_Free(l->tensors);
  loans_init(l);
}

int lend_all(loans *l, PyObject *objects, int writable) {
  Py_ssize_t count = PySequence_Size(objects);
  if (count < 0 || loans_reserve(l, (size_t)count) != 0) return -1;
  int tuple = PyTuple_Check(objects);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *object = tuple ? PyTuple_GetItem(objects, i) : PySequence_GetItem(objects, i);
    if (object == NULL) return -1;
    int status = lend(l, object, writable);
    if (!tuple) Py_DECREF(object);
    if (status != 0) return -1;
  }
  return 0;
}

void both_init(both *b) {
  loans_init(&b->inputs);
  loans_init(&b->outputs);
}

both *both_moved(both *from) {
  both *to = PyMem_Malloc(sizeof(both));
  if (to == NULL) return NULL;
  *to = *from;
  for (int i = 0; i < 2; i++) {
    loans *a = i ? &from->outputs : &from->inputs, *b = i ? &to->outputs : &to->inputs;
    if (a->items == a->few_items) b->items = b->few_items;
    if (a->tensors == a->few_tensors) b->tensors = b->few_tensors;
  }
  both_init(from);
  return to;
}

void both_release(both *b) {
  loans_release(&b->inputs);
  loans_release(&b->outputs);
}

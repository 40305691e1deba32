/* NumPy's arrays as the library's descriptors. */
#include <string.h>

#include "kinds.h"

enum { MOST_DTYPES = 32 };

static hvd_dtype dtype_of_format(const char *format, Py_ssize_t size) {
  if (format == NULL || format[0] == '\0' || format[1] != '\0') return 0;
  if (strchr("bhilqn", format[0]) != NULL) return dtype_of(0, (uint8_t)(8 * size));
  if (strchr("BHILQN", format[0]) != NULL) return dtype_of(1, (uint8_t)(8 * size));
  if (strchr("efd", format[0]) != NULL) return dtype_of(2, (uint8_t)(8 * size));
  return format[0] == '?' && size == 1 ? HVD_DTYPE_BOOL : 0;
}

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
  Py_buffer *view = PyMem_Malloc(sizeof *view);
  if (view == NULL) return PyErr_NoMemory(), -1;
  if (PyObject_GetBuffer(array, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0)) !=
      0) {
    PyMem_Free(view);
    PyErr_Clear();
    return 0;
  }
  keep->view = view;
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

int kind_of_numpy(kind *found) {
  found->read = numpy_has_layout() ? read_numpy : read_unknown_numpy;
  return 1;
}

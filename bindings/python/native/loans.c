/* What keeps arrays' memory while an operation uses it.
 *
 * Arrays of exactly the types that register_type has been told are read natively (numpy.c, torch.c). All
 * others, and every array that something is wrong with, go to the Python code (hvd/borrowing.py), which knows
 * why. */
#include <string.h>

#include "kinds.h"

enum { MOST_TYPES = 8 };

/* ---- Dtypes ---- */

hvd_dtype dtype_of(uint8_t code, uint8_t bits) { /* DLPack's */
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
  int usable;
  if (torch) {
    usable = kind_of_torch(&found, example);
  } else {
    usable = kind_of_numpy(&found);
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
  if (l->view != NULL) PyBuffer_Release(l->view);
  PyMem_Free(l->view);
  l->view = NULL;
  Py_CLEAR(l->more);
}

static int lend(loans *l, PyObject *object, int writable) {
  static const hvd_tensor blank = HVD_TENSOR_INIT;
  loan *keep = &l->items[l->count];
  hvd_tensor *tensor = &l->tensors[l->count];
  keep->more = NULL;
  keep->view = NULL;
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
  PyObject *(*const item)(PyObject *, Py_ssize_t) = PyTuple_Check(objects)  ? PyTuple_GetItem
                                                    : PyList_Check(objects) ? PyList_GetItem
                                                                            : NULL;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *object = item != NULL ? item(objects, i) : PySequence_GetItem(objects, i);
    if (object == NULL) return -1;
    int status = lend(l, object, writable);
    if (item == NULL) Py_DECREF(object);
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

/* hvd._calls: submits operations without a detour. Arguments are checked once, the interpreter's lock is
 * let go once.
 *
 * hvd/_submit.py gives it the functions of the libhvd that it has loaded, and does the same in ctypes where
 * this module is missing. Arguments that are wrong go to the Python code, which knows why. */
#include "calls.h"

#include <string.h>

/* A wait in the library lasts this long at most, so that Ctrl-C is seen in between. */
#define SLICE (200 * HVD_MILLISECOND)

known hvd;

static Py_ssize_t inside; /* calls that threads are in; under the interpreter's lock */

#define BEGIN_CALL \
  inside++;        \
  Py_BEGIN_ALLOW_THREADS
#define END_CALL Py_END_ALLOW_THREADS inside--;

static PyTypeObject *operation_type;

/* hvd_destroy_fn: from any thread, once the library no longer uses the memory. */
static void let_go(void *userdata) {
  if (userdata == NULL || !Py_IsInitialized()) return;
  PyGILState_STATE state = PyGILState_Ensure();
  both_release(userdata);
  PyMem_Free(userdata);
  PyGILState_Release(state);
}

/* ---- Errors ---- */

/* The exception of a status; NULL if another one is on its way. */
static PyObject *exception_of(const hvd_error *error) {
  return PyObject_CallFunction(
      hvd.failure, "iiKLsN", (int)error->status, (int)error->rank, (unsigned long long)error->generation,
      (long long)error->vendor_code, error->backend,
      PyUnicode_DecodeUTF8(error->message, (Py_ssize_t)strlen(error->message), "replace"));
}

static void raise_status(const hvd_error *error) {
  PyObject *problem = exception_of(error);
  if (problem == NULL) return;
  PyErr_SetObject((PyObject *)Py_TYPE(problem), problem);
  Py_DECREF(problem);
}

/* ---- Operations under way ---- */

typedef struct operation {
  PyObject_HEAD hvd_op *op;
  both *memory; /* until it has completed */
} operation;

static PyObject *operation_new(hvd_op *op, both *memory) {
  operation *self = (operation *)PyType_GenericAlloc(operation_type, 0);
  both *moved = self == NULL ? NULL : both_moved(memory);
  if (moved == NULL) { /* the memory is the operation's until it is over: rather lose it */
    both_init(memory);
    hvd.abandon(op, NULL, let_go, NULL);
    Py_XDECREF((PyObject *)self);
    return PyErr_NoMemory();
  }
  self->op = op;
  self->memory = moved;
  return (PyObject *)self;
}

static void operation_dealloc(PyObject *object) {
  operation *self = (operation *)object;
  PyTypeObject *type = Py_TYPE(object);
  /* Dropped before its end it goes on. At once if it is over, and in a forked child, whose copy of the
   * memory it is. */
  if (self->op != NULL) hvd.abandon(self->op, self->memory, let_go, NULL);
  PyObject_Free(object);
  Py_DECREF((PyObject *)type);
}

static void operation_settle(operation *self) {
  both *memory = self->memory;
  self->memory = NULL;
  if (memory == NULL) return;
  both_release(memory);
  PyMem_Free(memory);
}

/* Until it has completed, at most `left` (negative: no bound): 1, or 0 with *ret_status and *error. -1: an
 * exception. */
static int operation_wait_for(operation *self, int64_t left, hvd_error *error) {
  for (;;) {
    int64_t piece = left >= 0 && left < SLICE ? left : SLICE;
    hvd_status status;
    int32_t done = 1;
    BEGIN_CALL
    status = hvd.wait(self->op, piece > 0 ? piece : 1, error);
    if (status == HVD_TIMEOUT) { /* its own, which ends it, or not yet over */
      hvd_error other = HVD_ERROR_INIT;
      if (hvd.test(self->op, &done, &other) == HVD_OK && done)
        status = hvd.wait(self->op, HVD_DEFAULT_TIMEOUT, error);
    }
    END_CALL
    error->status = status;
    if (done) return 1;
    if (PyErr_CheckSignals() != 0) return -1;
    if (left >= 0 && (left -= piece) <= 0) return 0;
  }
}

/* wait(nanoseconds or None): None, or the exception that it ended with. Raises what is not its end. */
static PyObject *operation_wait(PyObject *object, PyObject *timeout) {
  operation *self = (operation *)object;
  int64_t left = -1;
  hvd_error error = HVD_ERROR_INIT;
  if (timeout != Py_None) {
    left = PyLong_AsLongLong(timeout);
    if (left < 0) return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "a negative time-out");
  }
  Py_INCREF(object);
  int done = operation_wait_for(self, left, &error);
  PyObject *result = NULL;
  if (done == 1 && error.status == HVD_OK) {
    operation_settle(self);
    result = Py_None;
    Py_INCREF(result);
  } else if (done == 1) {
    int32_t over = 0;
    if (hvd.test(self->op, &over, NULL) == HVD_OK && over) {
      operation_settle(self);
      result = exception_of(&error);
    } else { /* the handle is refused, in a forked child say: that is not the operation's end */
      raise_status(&error);
    }
  } else if (done == 0) {
    raise_status(&error);
  }
  Py_DECREF(object);
  return result;
}

static PyObject *operation_done(PyObject *object, PyObject *unused) {
  (void)unused;
  int32_t done = 0;
  hvd_error error = HVD_ERROR_INIT;
  error.status = hvd.test(((operation *)object)->op, &done, &error);
  if (error.status != HVD_OK) {
    raise_status(&error);
    return NULL;
  }
  return PyBool_FromLong(done);
}

static PyObject *operation_pointer(PyObject *object, void *unused) {
  (void)unused;
  return PyLong_FromVoidPtr(((operation *)object)->op);
}

static PyMethodDef operation_methods[] = {
    {"wait", operation_wait, METH_O, "wait(nanoseconds or None): None, or the exception that it ended with."},
    {"done", operation_done, METH_NOARGS, "Whether it has completed."},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef operation_fields[] = {{"pointer", operation_pointer, NULL, "The native handle.", NULL},
                                         {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot operation_slots[] = {
    {Py_tp_dealloc, operation_dealloc},
    {Py_tp_methods, operation_methods},
    {Py_tp_getset, operation_fields},
    {Py_tp_doc, "An operation under way, and the memory that it reads and writes."},
    {0, NULL}};
static PyType_Spec operation_spec = {"hvd._calls.Operation", sizeof(operation), 0,
                                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, operation_slots};

/* ---- submit ---- */

/* A whole number of 32 bits; the Python code refuses others, naming `what`. */
static int read_int(PyObject *value, const char *what, int32_t *out) {
  int overflow = 0;
  long long number = PyLong_Check(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
  if (!PyLong_Check(value) || overflow || number != (int32_t)number) {
    PyObject *checked = PyObject_CallFunction(hvd.integer, "Ois", value, 32, what);
    if (checked == NULL) return -1;
    number = PyLong_AsLongLong(checked);
    Py_DECREF(checked);
  }
  if (number == -1 && PyErr_Occurred()) return -1;
  *out = (int32_t)number;
  return 0;
}

static int read_factor(PyObject *value, const char *what, double *out) {
  double number = PyFloat_Check(value) ? PyFloat_AsDouble(value) : 0;
  if (number == 0) {
    PyObject *checked = PyObject_CallFunction(hvd.factor, "Os", value, what);
    if (checked == NULL) return -1;
    number = PyFloat_AsDouble(checked);
    Py_DECREF(checked);
    if (number == -1 && PyErr_Occurred()) return -1;
  }
  *out = number == 1.0 ? 0 : number;
  return 0;
}

static int read_name(PyObject *value, const char **out, PyObject **keep) {
  if (value == Py_None) return 0;
  Py_ssize_t size = 0;
  if (PyUnicode_Check(value)) *out = PyUnicode_AsUTF8AndSize(value, &size);
  if (*out != NULL && strlen(*out) == (size_t)size) return 0;
  PyErr_Clear();
  *keep = PyObject_CallFunction(hvd.text, "Os", value, "name"); /* refuses it */
  if (*keep == NULL) return -1;
  *out = PyBytes_AsString(*keep);
  return *out == NULL ? -1 : 0;
}

static int64_t *read_splits(PyObject *splits, size_t *count) {
  Py_ssize_t size = PySequence_Size(splits);
  if (size < 0) return NULL;
  int64_t *rows = PyMem_Malloc((size_t)(size > 0 ? size : 1) * sizeof *rows);
  if (rows == NULL) return (int64_t *)PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < size; i++) {
    PyObject *row = PySequence_GetItem(splits, i);
    PyObject *checked = row == NULL ? NULL : PyObject_CallFunction(hvd.integer, "Ois", row, 64, "splits");
    Py_XDECREF(row);
    rows[i] = checked == NULL ? 0 : PyLong_AsLongLong(checked);
    Py_XDECREF(checked);
    if (PyErr_Occurred()) {
      PyMem_Free(rows);
      return NULL;
    }
  }
  *count = (size_t)size;
  return rows;
}

/* The arguments of submit, in their order. */
enum {
  CONTEXT,
  COLLECTIVE,
  NAME,
  INPUTS,
  OUTPUTS,
  GROUP,
  ROOT,
  REDUCTION,
  PRIORITY,
  PRESCALE,
  POSTSCALE,
  SPLITS,
  SET,
  DEADLINE,
  WAIT,
  ARGUMENTS
};

static int read_request(PyObject *const *of, hvd_request *r, both *memory, int64_t **splits,
                        PyObject **keep) {
  static const char *const numbers[] = {"collective", "root_rank", "op", "priority"};
  static const int at[] = {COLLECTIVE, ROOT, REDUCTION, PRIORITY};
  int32_t *const fields[] = {&r->collective, &r->root, &r->reduction, &r->priority};
  for (int i = 0; i < 4; i++) {
    if (read_int(of[at[i]], numbers[i], fields[i]) != 0) return -1;
  }
  if (read_factor(of[PRESCALE], "prescale_factor", &r->prescale) != 0 ||
      read_factor(of[POSTSCALE], "postscale_factor", &r->postscale) != 0 ||
      read_name(of[NAME], &r->name, keep) != 0)
    return -1;
  int in_place = of[OUTPUTS] == of[INPUTS] && of[INPUTS] != Py_None;
  if (of[INPUTS] != Py_None) {
    if (lend_all(&memory->inputs, of[INPUTS], in_place) != 0) return -1;
    if (memory->inputs.count > 0) r->inputs = memory->inputs.tensors;
    if (in_place) r->outputs = r->inputs;
  }
  if (of[OUTPUTS] != Py_None && !in_place) {
    if (lend_all(&memory->outputs, of[OUTPUTS], 1) != 0) return -1;
    if (memory->outputs.count > 0) r->outputs = memory->outputs.tensors;
  }
  if (of[GROUP] == Py_True) {
    r->count = memory->inputs.count > memory->outputs.count ? memory->inputs.count : memory->outputs.count;
  }
  if (of[SPLITS] != Py_None) {
    *splits = read_splits(of[SPLITS], &r->split_count);
    if (*splits == NULL) return -1;
    r->splits = *splits;
  }
  if (of[SET] != Py_None) {
    r->process_set = PyLong_AsVoidPtr(of[SET]);
    if (r->process_set == NULL) return -1;
  }
  if (of[DEADLINE] != Py_None) {
    PyObject *ns = PyObject_CallFunctionObjArgs(hvd.nanoseconds, of[DEADLINE], NULL);
    if (ns == NULL) return -1;
    r->timeout_ns = PyLong_AsLongLong(ns);
    Py_DECREF(ns);
  }
  return PyErr_Occurred() ? -1 : 0;
}

/* submit(context, collective, name, inputs, outputs, group, root, reduction, priority, prescale,
 * postscale, splits, set, timeout, wait): an Operation; None if it has completed and there is nothing to
 * ask of it. */
static PyObject *submit(PyObject *module, PyObject *const *of, Py_ssize_t count) {
  (void)module;
  if (hvd.submit == NULL || count != ARGUMENTS) {
    return PyErr_Format(PyExc_TypeError, "submit: %zd arguments: expected %d, after bind", count,
                        (int)ARGUMENTS);
  }
  hvd_request request = HVD_REQUEST_INIT;
  hvd_error error = HVD_ERROR_INIT;
  both memory;
  int64_t *splits = NULL;
  PyObject *keep = NULL, *result = NULL;
  hvd_op *op = NULL;
  both_init(&memory);
  const int wait = of[WAIT] == Py_True;
  hvd_context *context = PyLong_AsVoidPtr(of[CONTEXT]);
  if (PyErr_Occurred() || read_request(of, &request, &memory, &splits, &keep) != 0) goto out;
  BEGIN_CALL
  error.status = wait ? hvd.submit_and_wait(context, &request, SLICE, &op, &error)
                      : hvd.submit(context, &request, &op, &error);
  END_CALL
  if (error.status != HVD_OK) {
    raise_status(&error);
  } else if (op == NULL) {
    result = Py_None;
    Py_INCREF(result);
  } else {
    result = operation_new(op, &memory);
    if (result != NULL && wait) {
      int done = operation_wait_for((operation *)result, -1, &error);
      if (done == 1) operation_settle((operation *)result);
      if (done == 1 && error.status != HVD_OK) raise_status(&error);
      if (done != 1 || error.status != HVD_OK) {
        Py_DECREF(result);
        result = NULL;
      }
    }
  }
out:
  both_release(&memory);
  PyMem_Free(splits);
  Py_XDECREF(keep);
  return result;
}

/* ---- The module ---- */

static PyObject *bind(PyObject *module, PyObject *arguments) {
  (void)module;
  unsigned long long at[5];
  if (!PyArg_ParseTuple(arguments, "(KKKKK)OOOOOOO", &at[0], &at[1], &at[2], &at[3], &at[4], &hvd.borrow,
                        &hvd.failure, &hvd.text, &hvd.integer, &hvd.factor, &hvd.nanoseconds,
                        &hvd.borrowed_type))
    return NULL;
  PyObject *const kept[] = {hvd.borrow, hvd.failure,     hvd.text,         hvd.integer,
                            hvd.factor, hvd.nanoseconds, hvd.borrowed_type};
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) Py_INCREF(kept[i]); /* as long as the process */
  memcpy(&hvd.submit_and_wait, &at[1], sizeof(void *));
  memcpy(&hvd.wait, &at[2], sizeof(void *));
  memcpy(&hvd.test, &at[3], sizeof(void *));
  memcpy(&hvd.abandon, &at[4], sizeof(void *));
  memcpy(&hvd.submit, &at[0], sizeof(void *));
  Py_RETURN_NONE;
}

static PyObject *count_inside(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  return PyLong_FromSsize_t(inside);
}

static PyObject *forget_inside(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  inside = 0;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"submit", (PyCFunction)(void (*)(void))submit, METH_FASTCALL,
     "Submits an operation: see hvd/_submit.py."},
    {"bind", bind, METH_VARARGS,
     "bind(addresses of functions, borrow, failure, text, integer, factor, nanoseconds, Borrowed)"},
    {"inside", count_inside, METH_NOARGS, "How many calls threads are in."},
    {"forget_inside", forget_inside, METH_NOARGS, "In a forked child: those threads are the parent's."},
    {"register_type", register_type, METH_VARARGS,
     "register_type(example, kind): whether arrays of its type are read natively."},
    {"dlpack", dlpack, METH_VARARGS,
     "dlpack(owner, address, code, bits, shape, versioned): host memory as a capsule that keeps the owner."},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                        "hvd._calls",
                                        "Operations of libhvd, natively.",
                                        -1,
                                        methods,
                                        NULL,
                                        NULL,
                                        NULL,
                                        NULL};

PyMODINIT_FUNC PyInit__calls(void) {
  if (loans_prepare() != 0) return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (module == NULL) return NULL;
  if (operation_type == NULL) operation_type = (PyTypeObject *)PyType_FromSpec(&operation_spec);
  if (operation_type == NULL || PyModule_AddObjectRef(module, "Operation", (PyObject *)operation_type) != 0) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}

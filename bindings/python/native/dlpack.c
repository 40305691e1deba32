/* Memory of the interpreter's objects as DLPack's capsules, which another library takes over.
 *
 * That library lets go of the memory in any thread, also in one that does not hold the interpreter's lock:
 * TensorFlow does. (NumPy before 1.24 frees its arrays without the lock then, which ends the process.) */
#include "dlpack.h"

#include "calls.h"

static const char kName[] = "dltensor", kVersionedName[] = "dltensor_versioned";

typedef struct lent {
  union {
    dl_managed plain;
    dl_versioned versioned;
  } as;
  PyObject *owner;
  int64_t extents[2 * HVD_MAX_DIMS]; /* of the shape, then strides */
} lent;

/* From any thread. */
static void let_go(lent *memory) {
  if (!Py_IsInitialized()) return; /* and the memory goes with the process */
  PyGILState_STATE state = PyGILState_Ensure();
  Py_DECREF(memory->owner);
  PyMem_Free(memory);
  PyGILState_Release(state);
}

static void let_go_plain(dl_managed *of) { let_go(of->context); }
static void let_go_versioned(dl_versioned *of) { let_go(of->context); }

/* Of a capsule: whoever takes the tensor over renames it. */
static void destroy(PyObject *capsule) {
  if (PyCapsule_IsValid(capsule, kName)) {
    let_go(((dl_managed *)PyCapsule_GetPointer(capsule, kName))->context);
  } else if (PyCapsule_IsValid(capsule, kVersionedName)) {
    let_go(((dl_versioned *)PyCapsule_GetPointer(capsule, kVersionedName))->context);
  }
}

static int describe(lent *memory, dl_tensor *tensor, PyObject *shape) {
  Py_ssize_t ndim = PyTuple_Size(shape);
  if (ndim > HVD_MAX_DIMS) {
    PyErr_Format(PyExc_ValueError, "a tensor of %zd dimensions: at most %d are possible", ndim, HVD_MAX_DIMS);
    return -1;
  }
  tensor->device_type = DL_CPU;
  tensor->ndim = (int32_t)ndim;
  tensor->lanes = 1;
  tensor->shape = memory->extents;
  tensor->strides = memory->extents + ndim;
  int64_t stride = 1;
  for (Py_ssize_t i = ndim; i-- > 0;) {
    int64_t extent = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
    if (extent == -1 && PyErr_Occurred() != NULL) return -1;
    tensor->shape[i] = extent;
    tensor->strides[i] = stride;
    stride *= extent;
  }
  return 0;
}

/* Of the module: dlpack(owner, address, code, bits, shape, versioned). Contiguous host memory that may be
 * written; the capsule, and then whoever takes it, keeps the owner. */
PyObject *dlpack(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *owner, *shape;
  unsigned long long address;
  unsigned char code, bits;
  int versioned;
  if (!PyArg_ParseTuple(arguments, "OKbbO!p", &owner, &address, &code, &bits, &PyTuple_Type, &shape,
                        &versioned))
    return NULL;
  lent *memory = PyMem_Calloc(1, sizeof *memory);
  if (memory == NULL) return PyErr_NoMemory();
  dl_tensor *tensor = versioned ? &memory->as.versioned.tensor : &memory->as.plain.tensor;
  tensor->data = (void *)(uintptr_t)address;
  tensor->code = code;
  tensor->bits = bits;
  if (describe(memory, tensor, shape) != 0) {
    PyMem_Free(memory);
    return NULL;
  }
  if (versioned) {
    memory->as.versioned.major = 1;
    memory->as.versioned.context = memory;
    memory->as.versioned.deleter = let_go_versioned;
  } else {
    memory->as.plain.context = memory;
    memory->as.plain.deleter = let_go_plain;
  }
  PyObject *capsule = PyCapsule_New(&memory->as, versioned ? kVersionedName : kName, destroy);
  if (capsule == NULL) {
    PyMem_Free(memory);
    return NULL;
  }
  Py_INCREF(owner);
  memory->owner = owner;
  return capsule;
}

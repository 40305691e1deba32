/* Declarations that the files of hvd._calls share: loans.c keeps arrays, calls.c submits operations on them,
 * dlpack.c gives memory away.
 *
 * The module is built against Python's stable ABI and links nothing. Every function here needs the
 * interpreter's lock, unless it says otherwise. */
#ifndef HVD_PYTHON_CALLS_H
#define HVD_PYTHON_CALLS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "hvd/connect.h"
#include "hvd/hvd.h"

enum { FEW = 4 }; /* loans that need no memory of their own */

/* Like libhvd, which is loaded once a process: its functions, and what _submit.py gives. */
typedef struct known {
  hvd_status (*submit)(hvd_context *, const hvd_request *, hvd_op **, hvd_error *);
  hvd_status (*submit_and_wait)(hvd_context *, const hvd_request *, int64_t, hvd_op **, hvd_error *);
  hvd_status (*wait)(hvd_op *, int64_t, hvd_error *);
  hvd_status (*test)(hvd_op *, int32_t *, hvd_error *);
  hvd_status (*abandon)(hvd_op *, void *, hvd_destroy_fn, hvd_error *);
  PyObject *borrow, *failure, *text, *integer, *factor, *nanoseconds, *borrowed_type;
} known;
extern known hvd;

/* Keeps the memory of a descriptor. */
typedef struct loan {
  PyObject *owner, *more; /* references */
  Py_buffer *view;        /* or NULL */
} loan;

typedef struct loans {
  size_t count;
  loan *items;
  hvd_tensor *tensors;
  loan few_items[FEW];
  hvd_tensor few_tensors[FEW];
} loans;

/* Both arrays of an operation; outputs are none if they are the inputs. They move to the heap with a
 * handle. */
typedef struct both {
  loans inputs, outputs;
} both;

void both_init(both *b);
/* On the heap, with `from` empty afterwards; NULL, and `from` as it was, without memory. */
both *both_moved(both *from);
void both_release(both *b);

/* Borrows each array of a tuple or list into `l`, which is empty: 0; -1 with an exception. */
int lend_all(loans *l, PyObject *objects, int writable);

/* Of the module: register_type(example, "numpy" or "torch"). */
PyObject *register_type(PyObject *module, PyObject *arguments);
/* Of the module, in dlpack.c. */
PyObject *dlpack(PyObject *module, PyObject *arguments);
/* 0; -1 with an exception. */
int loans_prepare(void);

#endif

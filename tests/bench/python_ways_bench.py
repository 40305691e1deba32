"""What the ways of calling C from Python cost: hvd._calls (C, stable ABI), Cython, cffi and ctypes make the
same call.

python tests/bench/python_ways_bench.py build/release/bindings/python/_calls.abi3.so [--rounds 15]

It needs Cython, cffi, NumPy and a C compiler. Each way takes the 15 arguments of hvd/_submit.py's submit(),
borrows a NumPy array, fills a request and calls a function with the signature of hvd_submit_and_wait that
returns at once. What is left is the way's own, in processor time of the calling thread. A round is a number
of calls of each, one after the other, in turns; medians and ranges over the rounds. Its last line is what the
built modules weigh.
"""

import argparse
import ctypes
import importlib.util
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings" / "python"))
CALLS = 5000
NOTHING = """
#include "hvd/hvd.h"
hvd_status nothing_submit_and_wait(hvd_context *c, const hvd_request *r, int64_t t, hvd_op **op,
                                   hvd_error *e) {
  (void)c, (void)t, (void)e;
  *op = 0;
  const int taken = r->inputs->shape[0] == 2 && r->inputs->dtype == HVD_DTYPE_FLOAT32 && r->name[0] == 'g';
  return taken ? HVD_OK : HVD_INVALID;
}
"""
CYTHON = """
# cython: language_level=3, boundscheck=False, binding=False
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE
from libc.stdint cimport int32_t, int64_t, uintptr_t
from libc.string cimport memset

cdef extern from "hvd/hvd.h":
    ctypedef struct hvd_context
    ctypedef struct hvd_op
    ctypedef struct hvd_process_set
    ctypedef struct hvd_error:
        size_t struct_size
    ctypedef struct hvd_tensor:
        size_t struct_size
        void *data
        int32_t dtype
        int32_t ndim
        int64_t shape[8]
    ctypedef struct hvd_request:
        size_t struct_size
        int32_t collective
        int32_t root
        const char *name
        const hvd_tensor *inputs
        const hvd_tensor *outputs
        size_t count
        int32_t reduction
        int32_t priority
        double prescale
        double postscale
        hvd_process_set *process_set
        int64_t timeout_ns

cdef extern from *:
    '''NOTHING'''
    int nothing_submit_and_wait(hvd_context *, const hvd_request *, int64_t, hvd_op **, hvd_error *) nogil

cdef dict codes = {b'f': 11, b'd': 12, b'i': 6, b'l': 8, b'B': 1}

def submit(context, int32_t collective, name, inputs, outputs, group, int32_t root, int32_t reduction,
           int32_t priority, double prescale, double postscale, splits, process_set, timeout, wait):
    cdef Py_buffer view
    cdef hvd_tensor tensor
    cdef hvd_request request
    cdef hvd_error error
    cdef hvd_op *op = NULL
    cdef hvd_context *where = <hvd_context *><uintptr_t>context
    cdef int status, i
    memset(&tensor, 0, sizeof(tensor)); memset(&request, 0, sizeof(request)); memset(&error, 0, sizeof(error))
    tensor.struct_size, request.struct_size = sizeof(tensor), sizeof(request)
    error.struct_size = sizeof(error)
    text = name.encode()
    request.collective, request.root, request.name = collective, root, <const char *>text
    request.reduction, request.priority = reduction, priority
    request.prescale, request.postscale = prescale, postscale
    if process_set is not None:
        request.process_set = <hvd_process_set *><uintptr_t>process_set
    PyObject_GetBuffer(inputs[0], &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)
    try:
        tensor.data, tensor.ndim, tensor.dtype = view.buf, view.ndim, codes[<bytes>view.format]
        for i in range(view.ndim):
            tensor.shape[i] = view.shape[i]
        request.inputs = request.outputs = &tensor
        with nogil:
            status = nothing_submit_and_wait(where, &request, 200000000, &op, &error)
    finally:
        PyBuffer_Release(&view)
    if status:
        raise RuntimeError(status)
"""
CFFI = """
typedef ... hvd_process_set;
typedef struct { size_t struct_size; void *data; int32_t dtype, ndim; int64_t shape[8]; ...; } hvd_tensor;
typedef struct {
  size_t struct_size; int32_t collective, root; const char *name; const hvd_tensor *inputs, *outputs;
  size_t count; int32_t reduction, priority; double prescale, postscale; hvd_process_set *process_set;
  int64_t timeout_ns; ...;
} hvd_request;
typedef ... hvd_op;
typedef ... hvd_context;
typedef struct { size_t struct_size; ...; } hvd_error;
int nothing_submit_and_wait(hvd_context *, const hvd_request *, int64_t, hvd_op **, hvd_error *);
"""


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(source, output):
    headers = [f"-I{ROOT}/include", f"-I{sysconfig.get_paths()['include']}"]
    command = ["cc", "-O2", "-shared", "-fPIC", "-w", *headers, str(source), "-o", str(output)]
    subprocess.run(command, check=True)
    return output


def by_cython(directory):
    source = directory / "ways_cython.pyx"
    nothing = NOTHING.replace("hvd_status nothing", "static hvd_status nothing")
    source.write_text(CYTHON.replace("NOTHING", nothing))
    subprocess.run([sys.executable, "-m", "cython", "-3", str(source)], check=True)
    path = compiled(source.with_suffix(".c"), directory / "ways_cython.so")
    return load(path, "ways_cython").submit, path


def by_cffi(directory):
    from cffi import FFI

    maker = FFI()
    maker.cdef(CFFI)
    maker.set_source("ways_cffi", NOTHING, include_dirs=[str(ROOT / "include")])
    path = maker.compile(str(directory))
    module = load(path, "ways_cffi")
    ffi, call = module.ffi, module.lib.nothing_submit_and_wait
    codes = {np.dtype(name): code for name, code in (("f4", 11), ("f8", 12), ("i4", 6), ("i8", 8), ("u1", 1))}

    def submit(context, collective, name, inputs, outputs, group, root, reduction, priority, prescale,
               postscale, splits, process_set, timeout, wait):
        (array, ) = inputs
        memory = ffi.from_buffer(array, require_writable=True)
        tensor = ffi.new("hvd_tensor *")
        tensor.struct_size, tensor.data = ffi.sizeof("hvd_tensor"), memory
        tensor.dtype, tensor.ndim = codes[array.dtype], array.ndim
        for i, extent in enumerate(array.shape):
            tensor.shape[i] = extent
        request, text = ffi.new("hvd_request *"), ffi.new("char[]", name.encode())
        request.struct_size, request.collective, request.root = ffi.sizeof("hvd_request"), collective, root
        request.name, request.inputs, request.outputs = text, tensor, tensor
        request.reduction, request.priority = reduction, priority
        request.prescale, request.postscale = prescale, postscale
        if process_set is not None:
            request.process_set = ffi.cast("hvd_process_set *", process_set)
        error, op = ffi.new("hvd_error *"), ffi.new("hvd_op **")
        error.struct_size = ffi.sizeof("hvd_error")
        status = call(ffi.cast("hvd_context *", context), request, 200000000, op, error)
        if status:
            raise RuntimeError(status)

    return submit, path


def by_ours(path, nothing):
    from hvd import _abi, _submit, borrowing, tensors

    calls = load(path, "hvd._calls")
    address = ctypes.cast(nothing.nothing_submit_and_wait, ctypes.c_void_p).value
    calls.bind((address,) * 5, borrowing.borrow, _abi.failure_of, _abi.text, _abi.integer, _submit._factor,
               _abi.nanoseconds, tensors.Borrowed)
    calls.register_type(np.zeros(1), "numpy")
    return calls.submit, path


class _Nothing:
    """In the place of the library, with the same prototypes."""

    def __init__(self, lib, nothing):
        self.hvd_submit_and_wait = nothing.nothing_submit_and_wait
        self.hvd_submit_and_wait.argtypes = lib.hvd_submit_and_wait.argtypes
        self.hvd_submit_and_wait.restype = lib.hvd_submit_and_wait.restype


def by_ctypes(nothing):
    from hvd import _submit

    _submit._lib = _Nothing(_submit._lib, nothing)
    return _submit._submit


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("calls", help="_calls.abi3.so")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory, weights = Path(name), {}
        (directory / "nothing.c").write_text(NOTHING)
        nothing = ctypes.CDLL(str(compiled(directory / "nothing.c", directory / "nothing.so")))
        array = np.zeros(2, np.float32)
        ways = {}
        for way, (submit, path) in (("C, stable ABI", by_ours(given.calls, nothing)),
                                    ("Cython", by_cython(directory)), ("cffi", by_cffi(directory))):
            ways[way], weights[way] = submit, Path(path).stat().st_size
        ways["ctypes"] = by_ctypes(nothing)
        took = {way: [] for way in ways}
        things = (array, )
        for turn in range(-1, given.rounds):
            for way in list(ways)[::1 if turn % 2 else -1]:
                submit, began = ways[way], time.thread_time_ns()
                for _ in range(CALLS):
                    submit(4096, 2, "gradient", things, things, False, 0, 1, 0, 1.0, 1.0, None, None, None,
                           True)
                if turn >= 0:
                    took[way].append((time.thread_time_ns() - began) / CALLS / 1e3)
        for way, values in took.items():
            ratios = [a / b for a, b in zip(values, took["C, stable ABI"])]
            print(f"{way}: {statistics.median(values):.2f} us ({min(values):.2f} to {max(values):.2f}), "
                  f"{statistics.median(ratios):.1f} times ({min(ratios):.1f} to {max(ratios):.1f})")
        print("bytes of the module: " + ", ".join(f"{way} {weight}" for way, weight in weights.items()))


if __name__ == "__main__":
    main()

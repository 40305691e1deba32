"""Uses the library from Python with nothing but the header's facts: ctypes_user.py LIBRARY"""
import ctypes
import sys

OK, FLOAT32, SUM, DEFAULT_TIMEOUT = 0, 11, 1, 0


class HvdError(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("status", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("generation", ctypes.c_uint64), ("vendor_code", ctypes.c_int64),
                ("backend", ctypes.c_char * 16), ("message", ctypes.c_char * 512)]


class HvdTensor(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("data", ctypes.c_void_p), ("dtype", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("shape", ctypes.c_int64 * 8), ("memory", ctypes.c_int32),
                ("device", ctypes.c_int32), ("stream", ctypes.c_void_p)]


library = ctypes.CDLL(sys.argv[1])  # lets go of the interpreter's lock during each call
library.hvd_status_name.restype = ctypes.c_char_p
library.hvd_shutdown.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]


def must(name, *values):
    error = HvdError(struct_size=ctypes.sizeof(HvdError))
    status = getattr(library, name)(*values, ctypes.byref(error))
    if status != OK:
        raise RuntimeError(f"{name}: {library.hvd_status_name(status).decode()}: {error.message.decode()}")


def tensor(values):
    return HvdTensor(struct_size=ctypes.sizeof(HvdTensor), data=ctypes.addressof(values), dtype=FLOAT32,
                     ndim=1, shape=(len(values), ))


context = ctypes.c_void_p()
must("hvd_init", None, ctypes.byref(context))
rank, size = library.hvd_rank(context), library.hvd_size(context)
numbers, sums = (ctypes.c_float * 3)(1, 2, 3 + rank), (ctypes.c_float * 3)()
inputs, outputs = tensor(numbers), tensor(sums)
must("hvd_allreduce", context, b"sum", ctypes.byref(inputs), ctypes.byref(outputs), SUM)
assert list(sums) == [size, 2 * size, 3 * size + size * (size - 1) / 2], list(sums)
print(f"rank {rank} of {size}")
must("hvd_shutdown", context, DEFAULT_TIMEOUT)
library.hvd_destroy(context)

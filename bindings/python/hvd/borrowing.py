"""What a program has (NumPy, PyTorch, DLPack, buffers) as the library's tensors, and arrays of the same kind
for results. Nothing is copied."""

from __future__ import annotations

import ctypes
import sys
import weakref
from typing import Any

from . import _abi
from . import _constants as c
from .errors import InvalidError
from .tensors import BY_DLPACK, CODES, SIZES, Array, Borrowed, describe, new

_HOST, _CUDA = c.MEMORY_HOST, c.MEMORY_CUDA

# A buffer's format and size of an element: 'l' has 8 bytes here and 4 elsewhere.
_KINDS = {
    **dict.fromkeys("BHILQN", "uint"), **dict.fromkeys("bhilqn", "int"), **dict.fromkeys("efd", "float")
}
_NATIVE = "@=<" if sys.byteorder == "little" else "@=>!"


class _PyBuffer(ctypes.Structure):
    """Py_buffer, the same since Python 2.6."""

    _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
                ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                ("format", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
                ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
                ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)), ("internal", ctypes.c_void_p)]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None
_SIMPLE_READ, _WRITABLE = 0, 1


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class _VersionedTensor(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor)]


_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is_valid.restype = ctypes.c_int
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p
_DL_HOST, _DL_CUDA = (1, 3), (2, 13)  # cpu and pinned; cuda and managed
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY
# Their arrays never change: other arrays and compiled programs share the memory. Their capsules do not say
# so.
_IMMUTABLE = frozenset(("jax", "jaxlib", "mlx", "tensorflow"))


def _refuse(what: str, why: str) -> InvalidError:
    return InvalidError(f"{what}: {why}")


_numpy_codes: dict[Any, int] = {}


def _from_numpy(array, writable: bool) -> Borrowed:
    dtype = _numpy_codes.get(array.dtype)  # by the dtype itself: its name is made anew each time
    if dtype is None:
        if len(_numpy_codes) < 100 and array.dtype.isnative and array.dtype.name in CODES:
            dtype = _numpy_codes[array.dtype] = CODES[array.dtype.name]
    if dtype is None:
        raise _refuse("NumPy array",
                      f"dtype {array.dtype} is not one of {', '.join(CODES)} in native byte order")
    flags = array.flags
    if not flags.c_contiguous:
        raise _refuse("NumPy array", f"shape {array.shape} with strides {array.strides} is not contiguous "
                                     "in row-major order; numpy.ascontiguousarray makes a copy that is")
    if writable and not flags.writeable:
        raise _refuse("NumPy array", "it is read-only, and the operation writes to it")
    tensor, count = describe(array.__array_interface__["data"][0], dtype, array.shape)
    # An array that is referred to weakly can't be resized, not even with refcheck=False.
    return Borrowed(tensor, (array, weakref.ref(array)), "numpy", count,
                    lambda: (array.__array_interface__["data"][0], array.nbytes))


def _torch_codes(torch) -> dict:
    codes = {getattr(torch, name): code for name, code in CODES.items() if hasattr(torch, name)}
    _torch_codes.cache = codes  # type: ignore[attr-defined]
    return codes


def torch_storage(tensor):
    """What holds a PyTorch tensor's memory."""
    return tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()


def _torch_memory(tensor) -> tuple[int, int]:
    return tensor.data_ptr(
    ), torch_storage(tensor).nbytes() - tensor.storage_offset() * tensor.element_size()


def _from_torch(torch, tensor, writable: bool) -> Borrowed:
    codes = getattr(_torch_codes, "cache", None) or _torch_codes(torch)
    dtype = codes.get(tensor.dtype)
    if dtype is None:
        raise _refuse("PyTorch tensor", f"dtype {tensor.dtype} is not one of {', '.join(CODES)}")
    if tensor.layout != torch.strided:
        raise _refuse("PyTorch tensor", f"layout {tensor.layout} is not dense")
    if not tensor.is_contiguous():
        raise _refuse("PyTorch tensor", f"shape {tuple(tensor.shape)} with strides {tensor.stride()} is not "
                                        "contiguous; .contiguous() makes a copy that is")
    if tensor.is_conj() or getattr(tensor, "is_neg", bool)():
        raise _refuse("PyTorch tensor",
                      "its values are a lazy view; .resolve_conj().resolve_neg() makes them real")
    if writable and tensor.requires_grad and not tensor.is_leaf:
        raise _refuse("PyTorch tensor",
                      "it is a result of autograd; the operation may only write to .detach() of it")
    device = tensor.device
    memory, stream, index = _HOST, None, 0
    if device.type == "cuda":
        memory, index = _CUDA, device.index or 0
        stream = torch.cuda.current_stream(device).cuda_stream
    elif device.type != "cpu":
        raise _refuse("PyTorch tensor", f"device {device} is neither cpu nor cuda")
    needed = tensor.storage_offset() * tensor.element_size() + tensor.numel() * tensor.element_size()
    storage = torch_storage(tensor)
    have = storage.nbytes()
    if have < needed:
        raise _refuse("PyTorch tensor",
                      f"its storage has {have} bytes and {needed} are needed: was it freed?")
    described, count = describe(tensor.data_ptr(), dtype, tensor.shape, memory, index, stream)
    # The storage, as tensor.data = other lets go of it.
    return Borrowed(described, (tensor, storage), "torch", count, lambda: _torch_memory(tensor))


def _capsule(thing, cuda: bool, what: str):
    options = {"stream": 1} if cuda else {}  # 1: the legacy default stream, on which the library then works
    try:
        try:
            return thing.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # an older producer
            return thing.__dlpack__(**options)
    except (BufferError, TypeError) as error:  # TypeError: NumPy before 2
        raise _refuse(what, f"its memory can't be shared: {error}") from error


def _is_immutable(thing) -> bool:
    return any(kind.__module__.partition(".")[0] in _IMMUTABLE for kind in type(thing).__mro__)


def _from_dlpack(thing, writable: bool) -> Borrowed:
    what = f"DLPack tensor of {type(thing).__name__}"
    if writable and _is_immutable(thing):
        raise _refuse(what, "it is immutable, and the operation writes to it; the form without an underscore "
                            "gives a new array")
    device_type, device_id = thing.__dlpack_device__()
    if device_type not in _DL_HOST + _DL_CUDA:
        raise _refuse(what, f"device type {int(device_type)} is neither host memory nor CUDA")
    cuda = device_type in _DL_CUDA
    capsule = _capsule(thing, cuda, what)
    if _capsule_is_valid(capsule, b"dltensor_versioned"):
        managed = _VersionedTensor.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise _refuse(what, f"DLPack version {managed.major}.{managed.minor}: expected 1.x")
        if writable and managed.flags & _READ_ONLY:
            raise _refuse(what, "it is read-only, and the operation writes to it")
        tensor = managed.tensor
    elif _capsule_is_valid(capsule, b"dltensor"):
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    else:
        raise _refuse(what, "__dlpack__ gave no capsule of a tensor (was it consumed already?)")
    dtype = BY_DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise _refuse(what, f"type code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes: "
                            f"not one of {', '.join(CODES)}")
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        expected = 1
        for extent, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim])):
            if extent > 1 and stride != expected and 0 not in shape:
                raise _refuse(what, f"shape {shape} with strides {tuple(tensor.strides[: tensor.ndim])} "
                                    "is not contiguous in row-major order")
            expected *= extent
    data = (tensor.data or 0) + tensor.byte_offset if tensor.data else None
    described, count = describe(data, dtype, shape, _CUDA if cuda else _HOST, device_id if cuda else 0)
    # The capsule is not consumed: when it goes its destructor gives the memory back to the producer.
    return Borrowed(described, (thing, capsule), "dlpack", count)


class _BufferLease:
    """A buffer that is held: a bytearray can't be resized nor a memoryview be released meanwhile."""

    def __init__(self, thing, flags: int):
        self.view = _PyBuffer()
        self._held = False
        _get_buffer(thing, ctypes.byref(self.view), flags)  # raises what the object raises
        self._held = True

    def __del__(self) -> None:
        if self._held:
            self._held = False
            _release_buffer(ctypes.byref(self.view))


def _from_buffer(thing, writable: bool) -> Borrowed:
    what = f"buffer of {type(thing).__name__}"
    with memoryview(thing) as view:
        letter = view.format[1:] if len(view.format) == 2 and view.format[0] in _NATIVE else view.format
        kind = "bool" if letter == "?" else "uint8" if letter == "c" else None
        if kind is None and letter in _KINDS:
            kind = f"{_KINDS[letter]}{view.itemsize * 8}"
        dtype = CODES.get(kind or "")
        if dtype is None:
            raise _refuse(what, f"format {view.format!r} is not that of one of {', '.join(CODES)}")
        if not view.c_contiguous:
            raise _refuse(
                what, f"shape {view.shape} with strides {view.strides} is not contiguous in row-major order")
        if writable and view.readonly:
            raise _refuse(what, "it is read-only, and the operation writes to it")
        shape = view.shape
    lease = _BufferLease(thing, _WRITABLE if writable else _SIMPLE_READ)
    tensor, count = describe(lease.view.buf, dtype, shape)
    return Borrowed(tensor, lease, "buffer", count)


def register_type(example: object, name: str) -> bool:
    """Tells compiled code of arrays that it may read by itself, those of the example's type. _submit.py
    replaces it where there is such code."""
    return False


_registered: set[type] = set()


def _register(thing: object, name: str, plain: tuple[type, ...]) -> None:
    kind = type(thing)
    if kind not in _registered and kind in plain:  # a subclass may do anything
        _registered.add(kind)
        register_type(thing, name)


def borrow(thing: Any, writable: bool = False) -> Borrowed:
    """The library's view of an array. InvalidError (a ValueError) or TypeError if it can't have one."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(thing, numpy.ndarray):
        _register(thing, "numpy", (numpy.ndarray,))
        return _from_numpy(thing, writable)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(thing, torch.Tensor):
        _register(thing, "torch", (torch.Tensor, torch.nn.Parameter))
        return _from_torch(torch, thing, writable)
    if isinstance(thing, Array):
        tensor, count = describe(thing._data, thing._dtype, thing.shape)
        return Borrowed(tensor, thing, "array", count)
    if hasattr(type(thing), "__dlpack__") and hasattr(type(thing), "__dlpack_device__"):
        return _from_dlpack(thing, writable)
    try:
        memoryview(thing).release()
    except TypeError:
        raise TypeError(
            f"expected a NumPy array, a PyTorch tensor, or an object with DLPack or the buffer protocol, "
            f"and not {type(thing).__name__}") from None
    return _from_buffer(thing, writable)


def new_like(thing: Any) -> tuple[Any, Any, Any]:
    """A new array like this one; then what to give to submit() of both: they, or their loans."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and type(thing) is numpy.ndarray:
        result = numpy.empty_like(thing)
        return result, thing, result
    if torch is not None and type(thing) is getattr(torch, "Tensor",
                                                    None) and thing.is_cpu and not thing.is_sparse:
        result = torch.empty_like(thing)
        return result, thing, result
    source = borrow(thing)
    result, target = empty_like(thing, source)
    return result, source, target


def rows_like(source: Borrowed) -> Borrowed:
    """Tells dtype and shape of rows for which the library is to find the memory."""
    tensor = _abi.Tensor.from_buffer_copy(source.tensor)
    tensor.data, tensor.memory, tensor.stream = None, _HOST, None
    return Borrowed(tensor, None, source.kind, 0)


def empty_like(thing: Any, source: Borrowed) -> tuple[Any, Borrowed]:
    """A new array of the kind, dtype and shape of what `source` was borrowed from, and its own loan."""
    if source.kind == "numpy":
        import numpy

        result = numpy.empty(thing.shape, thing.dtype)
    elif source.kind == "torch":
        import torch

        result = torch.empty(thing.shape, dtype=thing.dtype, device=thing.device)
    else:
        if source.tensor.memory != _HOST:
            raise InvalidError("results in device memory are made for PyTorch's tensors only: give out=")
        array = new(source.dtype, source.shape)
        return array.like(source.kind), borrow(array, writable=True)
    return result, borrow(result, writable=True)


def copy_of(thing: Any) -> tuple[Any, Borrowed]:
    """A copy of the array, of its kind, and its loan."""
    source = borrow(thing)
    result, loan = empty_like(thing, source)
    if source.kind == "torch":
        result.copy_(thing.detach())
    elif source.count:
        ctypes.memmove(loan.tensor.data, source.tensor.data, source.count * SIZES[source.dtype])
    return result, loan

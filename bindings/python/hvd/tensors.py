"""The library's tensors as Python has them: dtypes, a loan of memory (Borrowed), and memory of Python's own
(Array)."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

from . import _abi
from . import _constants as c
from .errors import InvalidError

_HOST = c.MEMORY_HOST

# Name, size, struct's format, DLPack's (code, bits) of each dtype.
_DTYPES = {
    c.DTYPE_UINT8: ("uint8", 1, "B", (1, 8)), c.DTYPE_INT8: ("int8", 1, "b", (0, 8)),
    c.DTYPE_UINT16: ("uint16", 2, "H", (1, 16)), c.DTYPE_INT16: ("int16", 2, "h", (0, 16)),
    c.DTYPE_UINT32: ("uint32", 4, "I", (1, 32)), c.DTYPE_INT32: ("int32", 4, "i", (0, 32)),
    c.DTYPE_UINT64: ("uint64", 8, "Q", (1, 64)), c.DTYPE_INT64: ("int64", 8, "q", (0, 64)),
    c.DTYPE_FLOAT16: ("float16", 2, "e", (2, 16)), c.DTYPE_BFLOAT16: ("bfloat16", 2, None, (4, 16)),
    c.DTYPE_FLOAT32: ("float32", 4, "f", (2, 32)), c.DTYPE_FLOAT64: ("float64", 8, "d", (2, 64)),
    c.DTYPE_BOOL: ("bool", 1, "?", (6, 8)),
}
NAMES = {code: entry[0] for code, entry in _DTYPES.items()}
SIZES = {code: entry[1] for code, entry in _DTYPES.items()}
CODES = {name: code for code, name in NAMES.items()}
_FORMATS = {code: entry[2] for code, entry in _DTYPES.items()}
BY_DLPACK = {entry[3]: code for code, entry in _DTYPES.items()}
DLPACK = {entry[0]: entry[3] for entry in _DTYPES.values()}
_TENSOR_SIZE = ctypes.sizeof(_abi.Tensor)
# Host memory as a capsule of DLPack's, from owner, address, code and bits of the dtype, shape, and whether it
# is to be a versioned one. Whoever takes it may let go of it in any thread. None without the compiled module.
capsule_of: Callable[..., Any] | None = None


class Borrowed:
    """A descriptor for the library, and what keeps its memory valid. `kind` says how results are to look.

    `where` tells address and bytes of the memory that the object has now, where it could get other memory
    meanwhile.
    """

    __slots__ = ("tensor", "owner", "kind", "count", "where", "__weakref__")

    def __init__(self, tensor: _abi.Tensor, owner: object, kind: str, count: int,
                 where: Callable[[], tuple[int, int]] | None = None):
        self.tensor = tensor
        self.owner = owner
        self.kind = kind
        self.count = count  # elements
        self.where = where

    def check(self, what: str) -> None:
        """InvalidError if the object has left the memory that was borrowed."""
        if self.where is None or not self.count:
            return
        address, size = self.where()
        if address != self.tensor.data or size < self.count * SIZES[self.dtype]:
            raise InvalidError(
                f"{what} has other memory than was registered: change it in place (x[...] = value, "
                "x.copy_(value)), or say so (State.set_array)")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[: self.tensor.ndim])

    @property
    def dtype(self) -> int:
        return self.tensor.dtype

    @property
    def place(self) -> tuple[int, int]:
        """The kind of memory, and the device."""
        return self.tensor.memory, self.tensor.device

    def describe(self) -> str:
        where = "host memory" if self.tensor.memory == _HOST else f"device {self.tensor.device}"
        return f"{NAMES[self.dtype]}{list(self.shape)} in {where}"

    def copy(self) -> Any:
        """What is in the memory now, for fill()."""
        if self.tensor.memory != _HOST:
            return self.owner[0].detach().clone()  # type: ignore[index]  # only PyTorch's are registered
        return ctypes.string_at(self.tensor.data, self.count * SIZES[self.dtype]) if self.count else b""

    def fill(self, values: Any) -> None:
        if self.tensor.memory != _HOST:
            self.owner[0].detach().copy_(values)  # type: ignore[index]
        elif self.count:
            ctypes.memmove(self.tensor.data, values, self.count * SIZES[self.dtype])


def describe(data: int | None, dtype: int, shape, memory: int = _HOST, device: int = 0,
             stream: int | None = None) -> tuple[_abi.Tensor, int]:
    ndim = len(shape)
    if ndim > _abi.MAX_DIMS:
        raise InvalidError(f"a tensor of {ndim} dimensions: at most {_abi.MAX_DIMS} are possible")
    count = 1
    for extent in shape:
        count *= extent
    if not data and count:
        raise InvalidError(f"the tensor of shape {tuple(shape)} has no memory: was it freed?")
    return _abi.Tensor(_TENSOR_SIZE, data, dtype, ndim, tuple(shape), memory, device, stream), count


class Array:
    """A result whose memory the library allocated, or one for an input that is neither NumPy's nor PyTorch's.

    It gives its memory to others without copying: numpy(), torch(), memoryview(), DLPack, NumPy's array
    interface. Each of them keeps it alive.
    """

    def __init__(self, data: int | None, dtype: int, shape: tuple[int, ...], owner: object):
        self._data = data
        self._dtype = dtype
        self._owner = owner
        self.shape = tuple(shape)
        count = 1
        for extent in self.shape:
            count *= extent
        self.size = count
        self.nbytes = count * SIZES[dtype]

    @property
    def dtype(self) -> str:
        return NAMES[self._dtype]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a scalar has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"hvd.Array(shape={self.shape}, dtype={self.dtype})"

    def _bytes(self):
        """The memory as a ctypes array that keeps it."""
        if not self.nbytes:
            return (ctypes.c_char * 0)()
        raw = (ctypes.c_char * self.nbytes).from_address(self._data)
        raw.owner = self  # instances of a ctypes array have a __dict__
        return raw

    def memoryview(self) -> memoryview:
        """bfloat16, which no buffer format describes, as unsigned 16-bit integers."""
        flat: Any = memoryview(self._bytes()).cast("B")
        return flat.cast(_FORMATS[self._dtype] or "H", self.shape) if self.nbytes else flat

    def tobytes(self) -> bytes:
        return bytes(self._bytes())

    def tolist(self) -> list:
        """Nested lists of numbers."""
        if not self.nbytes or self._dtype in (c.DTYPE_FLOAT16, c.DTYPE_BFLOAT16):
            return self.numpy().tolist()
        return self.memoryview().tolist()

    def numpy(self):
        import numpy

        if self.dtype == "bfloat16":
            import ml_dtypes  # NumPy has no such type of its own

            dtype = numpy.dtype(ml_dtypes.bfloat16)
        else:
            dtype = numpy.dtype(self.dtype)
        return numpy.frombuffer(self._bytes(), numpy.uint8).view(dtype).reshape(self.shape)

    def torch(self):
        import torch

        dtype = getattr(torch, self.dtype, None)
        if dtype is None:
            raise InvalidError(f"this version of PyTorch has no dtype {self.dtype}")
        if not self.nbytes:
            return torch.empty(self.shape, dtype=dtype, device="cpu")
        return torch.frombuffer(self._bytes(), dtype=dtype).reshape(self.shape)

    def __array__(self, dtype=None, copy=None):
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if stream is not None or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"stream {stream}, device {dl_device}: expected none, or the host's (1, 0)")
        if capsule_of is None:  # NumPy's, which may refuse a copy, and refuses bfloat16
            given = {"max_version": max_version, "copy": copy}
            given = {key: value for key, value in given.items() if value is not None}
            return self.numpy().__dlpack__(**given)
        owner: Any = self
        if copy and self.nbytes:
            owner = new(self._dtype, self.shape)
            ctypes.memmove(owner._data, self._data, self.nbytes)
        return capsule_of(owner, owner._data or 0, *DLPACK[self.dtype], self.shape,
                          max_version is not None and max_version >= (1, 0))

    def like(self, kind: str):
        """As what the input was: "numpy", "torch", "buffer", "array" or "dlpack"."""
        if kind == "numpy":
            return self.numpy()
        if kind == "torch":
            return self.torch()
        return self.memoryview() if kind == "buffer" else self


def new(dtype: int, shape: tuple[int, ...]) -> Array:
    """Host memory of Python's own, zeroed."""
    count = SIZES[dtype]
    for extent in shape:
        count *= extent
    memory = (ctypes.c_char * count)()
    return Array(ctypes.addressof(memory) if count else None, dtype, shape, memory)

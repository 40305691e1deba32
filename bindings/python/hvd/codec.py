"""Python objects as bytes, by a codec that the caller chooses.

"json" (the default, which set_codec changes for a whole program) executes nothing that it reads: JSON for
what JSON knows, with tags for what scripts send besides (_TYPES below lists it), NumPy's arrays and numbers,
and PyTorch's tensors. "pickle" takes nearly everything, and whoever can send you a pickle can run code in
your process: it is for jobs whose every member is trusted. Any object with dumps(object) -> bytes and
loads(bytes) -> object is a codec too.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import datetime
import json
import pathlib
import pickle
import struct
import sys
import types
from typing import Any, Callable, Protocol, Union

from .borrowing import torch_storage
from .errors import InvalidError


class Codec(Protocol):
    def dumps(self, thing: Any) -> bytes: ...

    def loads(self, data: bytes) -> Any: ...


CodecLike = Union[str, Codec]

class Loan:
    """Memory of somebody else's, which `owner` keeps where it is; bytes() copies it."""

    __slots__ = ("address", "size", "owner")

    def __init__(self, address: int, size: int, owner: object):
        self.address, self.size, self.owner = address, size, owner

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return ctypes.string_at(self.address, self.size) if self.size else b""


def loan_of(data: Any) -> Loan:
    """The memory of bytes, or of another buffer, of which it is a copy if it is not to be written to."""
    if not isinstance(data, bytes):
        try:
            return Loan(ctypes.addressof(ctypes.c_char.from_buffer(data)), memoryview(data).nbytes, data)
        except (TypeError, ValueError):  # it is read-only, or empty
            data = bytes(data)
    return Loan(ctypes.cast(data, ctypes.c_void_p).value or 0, len(data), data)


def _loan_of_tensor(tensor: Any, itemsize: int, where: str) -> Loan:
    """The memory of a contiguous tensor, if its storage still has it."""
    size = tensor.numel() * itemsize
    if size:
        needed = tensor.storage_offset() * itemsize + size
        have = torch_storage(tensor).nbytes()
        if have < needed:
            raise InvalidError(f"{where}: a tensor of shape {tuple(tensor.shape)} whose storage has {have} "
                               f"bytes, and {needed} are needed: was it freed?")
    return Loan(tensor.data_ptr(), size, tensor)


_MAGIC = b"hvdj\x01"
_HEAD = len(_MAGIC) + 8
_LINE = 64
_GAPS = [loan_of(bytes(size)) for size in range(_LINE)]
_TAG = "__hvd__"


def _timezone(zone: datetime.tzinfo | None) -> str | None:
    if zone is None or type(zone) is datetime.timezone:
        return None
    raise InvalidError(f"a time in zone {zone!r}: expected none, or a datetime.timezone")


def _of_time(thing: Any) -> str:
    _timezone(getattr(thing, "tzinfo", None))
    return thing.isoformat()


# A defaultdict may make these: received bytes name nothing else that is called.
_FACTORIES = {kind.__name__: kind for kind in (bool, bytes, complex, dict, float, frozenset, int, list, set,
                                               str, tuple, collections.Counter, collections.OrderedDict,
                                               collections.deque)}


def _of_defaultdict(thing: collections.defaultdict) -> list:
    factory = thing.default_factory
    if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
        raise InvalidError(f"a defaultdict of {factory!r}: the json codec takes those of "
                           f"{', '.join(_FACTORIES)} and None")
    return [factory and factory.__name__, _pairs(thing)]


def _pairs(thing: dict) -> list:
    return [list(pair) for pair in thing.items()]


# Types that are kept as their parts: (to parts, from parts). The parts are encoded in their turn.
_TYPES: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    tuple: (list, tuple),
    set: (list, set),
    frozenset: (list, frozenset),
    complex: (lambda thing: [thing.real, thing.imag], lambda parts: complex(*parts)),
    range: (lambda thing: [thing.start, thing.stop, thing.step], lambda parts: range(*parts)),
    slice: (lambda thing: [thing.start, thing.stop, thing.step], lambda parts: slice(*parts)),
    collections.deque: (lambda thing: [list(thing), thing.maxlen], lambda parts: collections.deque(*parts)),
    collections.OrderedDict: (_pairs, collections.OrderedDict),
    collections.Counter: (_pairs, lambda parts: collections.Counter(dict(parts))),
    collections.defaultdict: (_of_defaultdict, lambda parts: collections.defaultdict(
        parts[0] if parts[0] is None else _FACTORIES[parts[0]], parts[1])),
    argparse.Namespace: (vars, lambda parts: argparse.Namespace(**parts)),
    types.SimpleNamespace: (vars, lambda parts: types.SimpleNamespace(**parts)),
    datetime.datetime: (_of_time, datetime.datetime.fromisoformat),
    datetime.date: (datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: (_of_time, datetime.time.fromisoformat),
    datetime.timedelta: (lambda thing: [thing.days, thing.seconds, thing.microseconds],
                         lambda parts: datetime.timedelta(*parts)),
    **{kind: (str, kind) for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath)},
}
_BY_NAME = {kind.__name__: kind for kind in _TYPES}


class JsonCodec:
    """Magic, length of the JSON text, the text, then the bytes of all arrays, one after the other."""

    def dumps(self, thing: Any) -> bytes:
        return b"".join(map(bytes, self.pieces(thing)))

    def pieces(self, thing: Any) -> list[bytes | Loan]:
        """What dumps() joins. Tensors' bytes are not copied: they are lent."""
        blobs = _Blobs()
        try:
            text = json.dumps(self._encode(thing, blobs, "object"), separators=(",", ":")).encode()
        except RecursionError:
            raise InvalidError(
                "object: it is nested too deeply for the json codec, or is part of itself") from None
        except (OverflowError, MemoryError, ValueError) as error:
            if isinstance(error, InvalidError):
                raise
            raise InvalidError(
                f"object: the json codec can't take it: {type(error).__name__}: {error}") from error
        # Spaces, so that arrays begin at a border of the cache's lines: a commit copies them faster.
        text += b" " * (-(_HEAD + len(text)) % _LINE)
        return [_MAGIC + struct.pack("<Q", len(text)) + text, *blobs.parts]

    def loads(self, data: bytes) -> Any:
        head = _HEAD
        if len(data) < head or data[: len(_MAGIC)] != _MAGIC:
            raise InvalidError("these bytes were not made by the json codec: do all ranks use the same one?")
        (length,) = struct.unpack_from("<Q", data, len(_MAGIC))
        if length > len(data) - head:
            raise InvalidError(
                f"the object is cut off: {len(data) - head} bytes follow, expected at least {length}")
        try:
            tree = json.loads(bytes(data[head : head + length]))
            return self._decode(tree, memoryview(data)[head + length :])
        except Exception as error:  # of whatever type: Python's, NumPy's and PyTorch's constructors read these bytes
            raise InvalidError(f"the object is damaged: {type(error).__name__}: {error}") from error

    def _encode(self, thing: Any, blobs: _Blobs, where: str) -> Any:
        kind = type(thing)
        if thing is None or kind in (bool, int, float, str):
            return thing
        if kind in _plain:
            return self._plain_tensor(thing, blobs, where)
        if kind in _TYPES:
            return {_TAG: kind.__name__, "items": self._encode(_TYPES[kind][0](thing), blobs, where)}
        torch = sys.modules.get("torch")
        if torch is not None and hasattr(torch, "Tensor"):  # it may be half imported
            if kind in (torch.Tensor, torch.nn.Parameter):
                return self._tensor(torch, thing, blobs, where)
            if kind is torch.Size:
                return {_TAG: "torch.Size", "items": list(thing)}
            if kind in (torch.dtype, torch.device):
                return {_TAG: f"torch.{kind.__name__}", "name": str(thing)}
        if isinstance(thing, tuple) and hasattr(kind, "_fields"):
            return {_TAG: "namedtuple", "module": kind.__module__, "name": kind.__qualname__,
                    "fields": list(kind._fields), "items": self._encode(list(thing), blobs, where)}
        if kind is list:
            return [self._encode(item, blobs, f"{where}[{i}]") for i, item in enumerate(thing)]
        if kind is dict:
            if all(type(key) is str for key in thing) and _TAG not in thing:
                return {key: self._encode(item, blobs, f"{where}[{key!r}]") for key, item in thing.items()}
            return {_TAG: "dict", "items": [[self._encode(key, blobs, f"{where} key"),
                                             self._encode(item, blobs, f"{where}[{key!r}]")]
                                            for key, item in thing.items()]}
        numpy = sys.modules.get("numpy")
        if numpy is not None and (kind is numpy.ndarray or isinstance(
                thing, numpy.generic)) and thing.dtype.kind in "biufcmMUS":
            scalar = kind is not numpy.ndarray
            # An array of one, so that what tobytes() gives has the dtype that is named, all its bytes and its
            # zeros.
            raw = numpy.asarray(thing)
            tag = blobs.add("numpy scalar" if scalar else "numpy", raw.tobytes())
            return {**tag, "dtype": raw.dtype.str, "shape": list(raw.shape)}
        if numpy is not None and isinstance(thing,
                                            numpy.dtype) and thing.names is None and thing.subdtype is None:
            return {_TAG: "numpy.dtype", "name": thing.str}
        if kind in (bytes, bytearray):
            return blobs.add(kind.__name__, bytes(thing))
        raise InvalidError(
            f"{where}: the json codec takes no {kind.__module__}.{kind.__qualname__}; "
            "codec='pickle' does (hvd.set_codec('pickle') for a whole program), where every member of "
            "the job is trusted")

    def _plain_tensor(self, thing: Any, blobs: _Blobs, where: str) -> dict:
        """Where the memory is as the bytes are to be: an optimizer has hundreds of them."""
        about = _dtypes.get(thing.dtype)
        if (about is None or not thing.is_cpu or thing.layout is not _strided or not thing.is_contiguous() or
                thing.is_neg()):
            return self._tensor(sys.modules["torch"], thing, blobs, where)
        name, itemsize = about
        loan = _loan_of_tensor(thing, itemsize, where)
        return {**blobs.add("torch", loan), "dtype": name, "shape": thing.shape, "device": "cpu",
                **_grads(thing)}

    @staticmethod
    def _tensor(torch: Any, thing: Any, blobs: _Blobs, where: str) -> dict:
        if thing.layout != torch.strided or thing.is_quantized:
            raise InvalidError(
                f"{where}: the json codec takes dense tensors, and not one of layout {thing.layout}, "
                f"dtype {thing.dtype}; codec='pickle' does, where every member of the job is trusted")
        if not thing.dtype.is_complex:
            _learn(torch, thing.dtype, thing.element_size())
        flat = thing.detach().resolve_conj().resolve_neg().cpu().contiguous()
        return {
            **blobs.add("torch", _loan_of_tensor(flat, flat.element_size(), where)),
            "dtype": str(thing.dtype).split(".")[1], "shape": list(thing.shape),
            "device": str(thing.device), **_grads(thing)
        }

    def _decode(self, tree: Any, blob: memoryview) -> Any:
        if isinstance(tree, list):
            return [self._decode(item, blob) for item in tree]
        if not isinstance(tree, dict):
            return tree
        kind = tree.get(_TAG)
        if kind is None:
            return {key: self._decode(item, blob) for key, item in tree.items()}
        if kind == "dict":
            return {self._decode(key, blob): self._decode(item, blob) for key, item in tree["items"]}
        if kind in _BY_NAME:
            return _TYPES[_BY_NAME[kind]][1](self._decode(tree["items"], blob))
        if kind == "namedtuple":
            return _namedtuple(tree["module"], tree["name"], tree["fields"],
                               self._decode(tree["items"], blob))
        if kind.startswith("torch."):
            return _of_torch(kind, tree)
        if kind == "numpy.dtype":
            return _numpy_dtype(tree["name"])
        first, last = tree["at"], tree["at"] + tree["bytes"]
        if not 0 <= first <= last <= len(blob):
            raise ValueError(f"an array of bytes {first} to {last} of {len(blob)}")
        raw = blob[first:last]
        if kind in ("bytes", "bytearray"):
            return bytes(raw) if kind == "bytes" else bytearray(raw)
        if kind in ("numpy", "numpy scalar"):
            import numpy

            dtype = _numpy_dtype(tree["dtype"])
            if dtype.itemsize == 0:
                array = numpy.zeros(_extents(tree["shape"]), dtype)
            else:
                array = numpy.frombuffer(raw, dtype).reshape(tree["shape"])
            return array[()] if kind == "numpy scalar" else array.copy()
        if kind == "torch":
            import torch

            dtype = _of_torch("torch.dtype", {"name": f"torch.{tree['dtype']}"})
            if not len(raw):
                if 0 not in _extents(tree["shape"]):
                    raise ValueError(f"no bytes for a tensor of shape {tree['shape']}")
                tensor = torch.empty(tree["shape"], dtype=dtype, device=tree["device"])
            else:
                tensor = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(tree["shape"])
            tensor = tensor.to(tree["device"])
            if tree.get("parameter"):
                return torch.nn.Parameter(tensor, bool(tree.get("grad")))
            return tensor.requires_grad_() if tree.get("grad") else tensor
        raise ValueError(f"unknown kind {kind!r}")


# Of PyTorch, as it is met: types of tensors with memory of their own; name and size of real dtypes.
_plain: set[type] = set()
_dtypes: dict[Any, tuple[str, int]] = {}
_strided: Any = None


def _learn(torch: Any, dtype: Any, itemsize: int) -> None:
    global _strided
    _strided = torch.strided
    _dtypes[dtype] = str(dtype).removeprefix("torch."), itemsize
    _plain.update((torch.Tensor, torch.nn.Parameter))


def _grads(tensor: Any) -> dict:
    """What is there besides values. A result keeps no graph, and so asks for no gradient."""
    about = {"grad": True} if tensor.requires_grad and tensor.is_leaf else {}
    return about if type(tensor) is sys.modules["torch"].Tensor else {**about, "parameter": True}


class _Blobs:
    """The bytes of arrays, which follow the text."""

    def __init__(self) -> None:
        self.parts: list[bytes | Loan] = []
        self.size = 0

    def add(self, kind: str, raw: bytes | Loan) -> dict:
        size = len(raw)
        if self.size % _LINE and size >= _LINE:
            gap = _GAPS[-self.size % _LINE]
            self.parts.append(gap)
            self.size += gap.size
        tag = {_TAG: kind, "at": self.size, "bytes": size}
        self.parts.append(raw)
        self.size += size
        return tag


def _extents(shape: list[int]) -> list[int]:
    """Of an array for which there are no bytes that would bound it."""
    count = 1
    for extent in shape:
        if not 0 <= extent < 2**63:
            raise ValueError(f"shape {shape}")
        count *= extent
    if count > 1 << 16:
        raise ValueError(f"no bytes for shape {shape}")
    return shape


def _numpy_dtype(name: Any) -> Any:
    import numpy

    dtype = numpy.dtype(name) if isinstance(name, str) else None
    if dtype is None or dtype.kind not in "biufcmMUS" or dtype.names is not None or dtype.subdtype is not None:
        raise ValueError(f"dtype {name!r}")
    return dtype


def _of_torch(kind: str, tree: dict) -> Any:
    import torch

    if kind == "torch.Size":
        return torch.Size(tree["items"])
    if kind == "torch.device":
        return torch.device(tree["name"])
    dtype = vars(torch).get(tree["name"].removeprefix("torch."))
    if kind != "torch.dtype" or not isinstance(dtype, torch.dtype):
        raise ValueError(f"{kind} {tree['name']!r}")
    return dtype


def _namedtuple(module: str, name: str, fields: list[str], items: list[Any]) -> Any:
    """Of the class with this name if it is loaded here and has these fields, else of one like it. No code of
    it runs."""
    if len(fields) != len(items):
        raise ValueError(f"{name}: {len(items)} values for {len(fields)} fields")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = None if found is None else vars(found).get(part) if hasattr(found, "__dict__") else None
    if not (isinstance(found, type) and issubclass(found, tuple) and
            vars(found).get("_fields") == tuple(fields)):
        make: Any = collections.namedtuple
        found = make(name.rpartition(".")[2], fields)  # which checks the names
    return tuple.__new__(found, items)


class PickleCodec:
    def dumps(self, thing: Any) -> bytes:
        return pickle.dumps(thing, protocol=4)

    def loads(self, data: bytes) -> Any:
        return pickle.loads(data)


_CODECS: dict[str, Codec] = {"json": JsonCodec(), "pickle": PickleCodec()}
_default: Codec = _CODECS["json"]


def codec_of(choice: CodecLike | None) -> Codec:
    """The codec that is meant; None: the program's."""
    if choice is None:
        return _default
    if isinstance(choice, str):
        if choice not in _CODECS:
            raise InvalidError(
                f"codec {choice!r}: expected 'json', 'pickle' or an object with dumps and loads")
        return _CODECS[choice]
    if not (callable(getattr(choice, "dumps", None)) and callable(getattr(choice, "loads", None))):
        raise InvalidError(f"codec {choice!r}: expected 'json', 'pickle' or an object with dumps and loads")
    return choice


def set_codec(choice: CodecLike) -> None:
    """The codec of all objects and states for which none is given from now on; every rank sets the same one.
    """
    global _default
    _default = codec_of("json" if choice is None else choice)

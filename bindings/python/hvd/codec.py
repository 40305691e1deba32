"""Python objects as bytes, by a codec that the caller chooses.

"json" (the default) executes nothing that it reads: JSON for what JSON knows, with tags for tuples, sets, bytes,
dictionaries with keys that are not strings, NumPy arrays and numbers, and PyTorch tensors. "pickle" takes nearly
everything, and whoever can send you a pickle can run code in your process: it is for jobs whose every
member is trusted. Any object with dumps(object) -> bytes and loads(bytes) -> object is a codec too.
"""

from __future__ import annotations

import json
import pickle
import struct
import sys
from typing import Any, Protocol, Union

from .errors import InvalidError


class Codec(Protocol):
    def dumps(self, thing: Any) -> bytes: ...

    def loads(self, data: bytes) -> Any: ...


CodecLike = Union[str, Codec]

_MAGIC = b"hvdj\x01"
_TAG = "__hvd__"


class JsonCodec:
    """Magic, length of the JSON text, the text, then the bytes of all arrays, one after the other."""

    def dumps(self, thing: Any) -> bytes:
        blobs: list[bytes] = []
        text = json.dumps(self._encode(thing, blobs, "object"), separators=(",", ":")).encode()
        return b"".join([_MAGIC, struct.pack("<Q", len(text)), text, *blobs])

    def loads(self, data: bytes) -> Any:
        head = len(_MAGIC) + 8
        if len(data) < head or data[: len(_MAGIC)] != _MAGIC:
            raise InvalidError("these bytes were not made by the json codec: do all ranks use the same one?")
        (length,) = struct.unpack_from("<Q", data, len(_MAGIC))
        if length > len(data) - head:
            raise InvalidError(f"the object is cut off: {len(data) - head} bytes follow, expected at least {length}")
        try:
            tree = json.loads(bytes(data[head : head + length]))
            return self._decode(tree, memoryview(data)[head + length :])
        except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
            # RecursionError and NotImplementedError are RuntimeErrors: what nests too deep, devices that are not there.
            raise InvalidError(f"the object is damaged: {type(error).__name__}: {error}") from error

    def _encode(self, thing: Any, blobs: list[bytes], where: str) -> Any:
        if thing is None or type(thing) in (bool, int, float, str):
            return thing
        if isinstance(thing, list):
            return [self._encode(item, blobs, f"{where}[{i}]") for i, item in enumerate(thing)]
        if isinstance(thing, dict):
            if all(type(key) is str for key in thing) and _TAG not in thing:
                return {key: self._encode(item, blobs, f"{where}[{key!r}]") for key, item in thing.items()}
            return {_TAG: "dict", "items": [[self._encode(key, blobs, f"{where} key"),
                                             self._encode(item, blobs, f"{where}[{key!r}]")]
                                            for key, item in thing.items()]}
        if type(thing) in (tuple, set, frozenset):
            return {_TAG: type(thing).__name__, "items": self._encode(list(thing), blobs, where)}
        if isinstance(thing, (bytes, bytearray)):
            return self._blob(type(thing).__name__, bytes(thing), blobs)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(thing, (numpy.ndarray, numpy.generic)):
            if thing.dtype.kind in "biufc":
                scalar = isinstance(thing, numpy.generic)
                tag = self._blob("numpy scalar" if scalar else "numpy", thing.tobytes(), blobs)
                return {**tag, "dtype": thing.dtype.str, "shape": list(thing.shape)}
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(thing, torch.Tensor):
            flat = thing.detach().cpu().contiguous().reshape(-1)
            raw = bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""
            tag = self._blob("torch", raw, blobs)
            return {**tag, "dtype": str(thing.dtype).split(".")[1], "shape": list(thing.shape),
                    "device": str(thing.device)}
        raise InvalidError(f"{where}: the json codec takes no {type(thing).__module__}.{type(thing).__qualname__}; "
                           "codec='pickle' does, where every member of the job is trusted")

    @staticmethod
    def _blob(kind: str, raw: bytes, blobs: list[bytes]) -> dict:
        blobs.append(raw)
        return {_TAG: kind, "at": sum(map(len, blobs[:-1])), "bytes": len(raw)}

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
        if kind in ("tuple", "set", "frozenset"):
            return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](self._decode(tree["items"], blob))
        first, last = tree["at"], tree["at"] + tree["bytes"]
        if not 0 <= first <= last <= len(blob):
            raise ValueError(f"an array of bytes {first} to {last} of {len(blob)}")
        raw = blob[first:last]
        if kind in ("bytes", "bytearray"):
            return bytes(raw) if kind == "bytes" else bytearray(raw)
        if kind in ("numpy", "numpy scalar"):
            import numpy

            dtype = numpy.dtype(tree["dtype"])
            if dtype.kind not in "biufc":
                raise ValueError(f"dtype {dtype}")
            array = numpy.frombuffer(raw, dtype).reshape(tree["shape"])
            return array[()] if kind == "numpy scalar" else array.copy()
        if kind == "torch":
            import torch

            dtype = getattr(torch, tree["dtype"])
            if not isinstance(dtype, torch.dtype):
                raise ValueError(f"dtype {tree['dtype']}")
            if not len(raw):
                return torch.empty(tree["shape"], dtype=dtype, device=tree["device"])
            tensor = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(tree["shape"])
            return tensor.to(tree["device"])
        raise ValueError(f"unknown kind {kind!r}")


class PickleCodec:
    def dumps(self, thing: Any) -> bytes:
        return pickle.dumps(thing, protocol=4)

    def loads(self, data: bytes) -> Any:
        return pickle.loads(data)


_CODECS: dict[str, Codec] = {"json": JsonCodec(), "pickle": PickleCodec()}


def codec_of(choice: CodecLike) -> Codec:
    if isinstance(choice, str):
        if choice not in _CODECS:
            raise InvalidError(f"codec {choice!r}: expected 'json', 'pickle' or an object with dumps and loads")
        return _CODECS[choice]
    if not (callable(getattr(choice, "dumps", None)) and callable(getattr(choice, "loads", None))):
        raise InvalidError(f"codec {choice!r}: expected 'json', 'pickle' or an object with dumps and loads")
    return choice

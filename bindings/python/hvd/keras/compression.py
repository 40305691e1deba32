"""Values in half precision on their way, on whichever backend Keras runs."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidError
from . import _keras


class NoneCompressor:
    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor


class FP16Compressor:
    """Floating-point tensors travel as float16, and come back in their own dtype."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        dtype = _keras.dtype_of(tensor)
        if dtype not in ("float32", "float64", "bfloat16"):
            return tensor, None
        return _keras.cast(tensor, "float16"), dtype

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor if context is None else _keras.cast(tensor, context)


class Compression:
    """As horovod.keras.Compression: none, or fp16."""

    none = NoneCompressor
    fp16 = FP16Compressor


def compression_of(given: Any) -> Any:
    """What `compression=` means. hvd.tensorflow's and hvd.torch's are these ones: they know one framework."""
    if given is None:
        return NoneCompressor
    if str(getattr(given, "__module__", "")).startswith("hvd."):
        given = {kind.__name__: kind for kind in (NoneCompressor, FP16Compressor)}.get(
            getattr(given, "__name__", ""), given)
    if not all(callable(getattr(given, name, None)) for name in ("compress", "decompress")):
        raise InvalidError(f"compression is {given!r}: expected hvd.keras.Compression.none, its fp16, or an "
                           "object with compress(tensor) and decompress(tensor, context)")
    return given

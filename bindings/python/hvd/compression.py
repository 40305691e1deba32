"""The base class of compressors: a program may write its own."""

from __future__ import annotations

from typing import Any


class Compressor:
    """Changes a gradient before it is reduced, and the result after it: compress() gives what travels, and
    what decompress() needs to make a tensor of the former kind of it."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        raise NotImplementedError

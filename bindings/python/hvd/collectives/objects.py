"""Objects of Python, by way of a codec."""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

from .. import _abi
from ..codec import Codec, CodecLike, codec_of
from ..errors import InvalidError
from .operation import BROADCAST_OBJECT, GATHER
from .rows import Rows

# A rank sends this in place of an object that its codec refuses, so that all ranks raise the same error.
_REFUSED = b"\0hvd: no object\0\1"


def _packed(translator: Codec, thing: Any, rank: int) -> tuple[bytes, Exception | None]:
    """The object's bytes, or why there are none: for the others, and for this rank."""
    try:
        return translator.dumps(thing), None
    except Exception as problem:
        why = f"rank {rank}: {problem}" if isinstance(problem, InvalidError) else (
            f"rank {rank}: the codec raised {type(problem).__name__}: {problem}")
        return _REFUSED + why.encode("utf-8", "replace")[:4096], problem


def _unpacked(translator: Codec, data: bytes, problem: Exception | None = None) -> Any:
    if data.startswith(_REFUSED):
        raise InvalidError(data[len(_REFUSED):].decode("utf-8", "replace")) from problem
    return translator.loads(data)


def _all_unpacked(translator: Codec, rows: bytes, sizes: Sequence[int],
                  problem: Exception | None) -> list[Any]:
    """One object after the other. The first rank's refusal is everybody's error."""
    parts, begin = [], 0
    for size in sizes:
        parts.append(rows[begin : begin + size])
        begin += size
    for part in parts:
        if part.startswith(_REFUSED):
            _unpacked(translator, part, problem)
    return [_unpacked(translator, part) for part in parts]


class Objects(Rows):

    def broadcast_object(self, thing: Any = None, root_rank: int = 0, name: str | None = None,
                         codec: CodecLike | None = None, *, process_set: Any = None,
                         timeout: float | None = None) -> Any:
        """The root's object on every rank; pickle only where every member of the job is trusted."""
        translator = codec_of(codec)
        root_rank = _abi.integer(root_rank, 32, "root_rank")
        mine, problem = None, None
        if self.rank() == root_rank:
            mine, problem = _packed(translator, thing, root_rank)
        data = self._do(True, BROADCAST_OBJECT, name, None if mine is None else (mine, ), None, None,
                        lambda handle: handle.output().tobytes(), root=root_rank, process_set=process_set,
                        timeout=timeout)
        return thing if mine is not None and problem is None else _unpacked(translator, data, problem)

    def allgather_object(self, thing: Any, name: str | None = None, codec: CodecLike | None = None, *,
                         process_set: Any = None, timeout: float | None = None) -> list[Any]:
        """Every rank's object, in rank order. A rank that has joined has none in the list."""
        translator = codec_of(codec)
        mine, problem = _packed(translator, thing, self.rank())
        lengths = (ctypes.c_int64 * 1)(len(mine))
        sizes, rows = self.grouped_allgather([lengths, mine], name, process_set=process_set, timeout=timeout)
        return _all_unpacked(translator, bytes(rows), sizes.tolist(), problem)

    def gather_object(self, thing: Any, root_rank: int = 0, name: str | None = None,
                      codec: CodecLike | None = None, *, process_set: Any = None,
                      timeout: float | None = None) -> list[Any] | None:
        """Every rank's object in rank order, on the root alone; None on the others."""
        translator = codec_of(codec)
        root_rank, rank = _abi.integer(root_rank, 32, "root_rank"), self.rank()
        mine, problem = _packed(translator, thing, rank)
        rows, sizes = self._do(
            True, GATHER, name, (mine, ), None, None, lambda handle:
            (handle.output().tobytes(), handle.received_splits())
            if rank == root_rank else (b"", []), root=root_rank, process_set=process_set, timeout=timeout)
        return _all_unpacked(translator, rows, sizes, problem) if rank == root_rank else None

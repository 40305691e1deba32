"""Sharded keys of a state: one range of a flat vector on each rank, with copies in the commit memory of
others."""

from __future__ import annotations

from ctypes import byref, c_int64
from typing import Any, Callable

from .. import _abi
from .._handles import Registry
from ..borrowing import borrow
from ..errors import InvalidError

_lib = _abi.lib
_shards = Registry()
_losses = Registry()

NO_COPIES = -1


@_abi.fails_unless_done(_abi.ReshardFn)
def _reshard(userdata, asked):
    return _shards.get(userdata)._reshard(asked.contents)


@_abi.DestroyFn
def _forget_shard(userdata):
    _shards.remove(userdata)


@_abi.fails_unless_done(_abi.LostFn)
def _lost(userdata, sentence):
    return _losses.get(userdata)(sentence.decode())


@_abi.DestroyFn
def _forget_loss(userdata):
    _losses.remove(userdata)


def shard_range(elements: int, rank: int, size: int) -> tuple[int, int]:
    """(offset, length) of a rank's part of an even split; the first ranks have one element more where it does
    not come out even."""
    offset, length = c_int64(), c_int64()
    _abi.check(_lib.hvd_shard_range, elements, rank, size, byref(offset), byref(length))
    return offset.value, length.value


class Shard:
    """This rank's range of a sharded key, as State.add_shard() gives it.

    `array` is its memory and `offset` its first element in the whole vector. After a change of ranks both are
    others: look them up when the training function begins, and at each use.
    """

    def __init__(self, problem: Any, key: str, elements: int, allocate: Callable[[int], Any],
                 split: Callable[[int, int], tuple[int, int]] | None, place: tuple[int, int]):
        self.key, self.elements = key, elements
        self.array: Any = None
        self.offset = 0
        self._problem, self._allocate, self._split = problem, allocate, split
        self._take(*(split(*place) if split else shard_range(elements, *place)))

    def __len__(self) -> int:
        return int(self._loan.count)

    def __repr__(self) -> str:
        return f"Shard({self.key!r}, {self.offset} to {self.offset + len(self) - 1} of {self.elements})"

    def _take(self, offset: int, length: int) -> None:
        array = self._allocate(length)
        loan = borrow(array, writable=True)
        if loan.count != length or loan.tensor.ndim != 1:
            raise InvalidError(
                f"shard {self.key!r}: allocate({length}) gave an array of {loan.count} elements in "
                f"{loan.tensor.ndim} dimensions: expected {length} in one")
        self.array, self.offset, self._loan = array, offset, loan

    def _reshard(self, asked: _abi.Shard) -> int:
        def action() -> None:
            offset, length = asked.offset, asked.elements
            if self._split is not None:
                offset, length = self._split(asked.rank, asked.size)
            self._take(offset, length)
            asked.offset, asked.elements, asked.data = offset, length, self._loan.tensor.data

        return int(self._problem.guard(action))

    def check(self, name: str) -> None:
        self._loan.check(name)

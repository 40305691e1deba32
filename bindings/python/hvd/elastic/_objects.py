"""Bytes that a program's callbacks give for a commit and take back: objects of a native state."""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_void_p
from typing import Any, Callable, Iterable

from .. import _abi
from .._handles import Registry
from ..borrowing import borrow
from ..codec import Loan, loan_of
from ..tensors import SIZES

_lib = _abi.lib
_objects = Registry()


@_abi.fails_unless_done(_abi.SaveFn)
def _save(userdata, write, sink):
    return _objects.get(userdata).save(write, sink)


@_abi.fails_unless_done(_abi.LoadFn)
def _load(userdata, data, size):
    return _objects.get(userdata).load(data, size)


@_abi.DestroyFn
def _forget_object(userdata):
    _objects.remove(userdata)


class _Problem:
    """The exception of a callback, which comes back through C as a status only; and what its callbacks have
    lent until the end of the call on the state."""

    def __init__(self) -> None:
        self.exception: BaseException | None = None
        self.lent: list[Any] = []
        self.begun: list[Any] = []  # likewise, until the end of a hidden commit

    def lend(self, sink: int, pieces: Iterable[bytes | Loan], until_end: bool = False) -> None:
        """Memory that the state's copying threads read before that call's end, or before that of a hidden
        commit."""
        loans = [piece if type(piece) is Loan else loan_of(piece) for piece in pieces]
        self.lent.append(loans)
        count = len(loans)
        lend = _lib.hvd_state_lend_until_end if until_end else _lib.hvd_state_lend
        if lend(sink, (c_void_p * count)(*[loan.address for loan in loans]),
                (c_size_t * count)(*[loan.size for loan in loans]), count):
            raise MemoryError("the state can't take the bytes of a commit")

    def guard(self, action: Callable[[], None]) -> int:
        try:
            action()
            return 0
        except BaseException as problem:
            self.exception = problem
            return 1

    def take(self) -> BaseException | None:
        problem, self.exception = self.exception, None
        return problem


class _Memory:
    """Contiguous memory that is elsewhere at each commit: get() says where, put() takes what a restore or
    sync brings."""

    def __init__(self, problem: _Problem, get: Callable[[], Any], put: Callable[[memoryview], None]):
        self.problem, self.get, self.put = problem, get, put

    def save(self, write: Any, sink: int) -> int:
        def action() -> None:
            borrowed = borrow(self.get())
            size = borrowed.count * SIZES[borrowed.dtype]
            self.problem.lend(sink, [Loan(borrowed.tensor.data, size, borrowed)])

        return self.problem.guard(action)

    def load(self, data: int, size: int) -> int:
        def action() -> None:
            view = (ctypes.c_char * size).from_address(data) if size else b""
            self.put(memoryview(view).cast("B"))

        return self.problem.guard(action)


class _Object:
    """Bytes that `pieces` gives, one after the other, and `put` takes. `until_end`: nobody writes them before
    a hidden commit's end."""

    def __init__(self, problem: _Problem, pieces: Callable[[], Iterable[bytes | Loan]],
                 put: Callable[[bytes], None], until_end: bool = False):
        self.problem, self.pieces, self.put, self.until_end = problem, pieces, put, until_end

    def get(self) -> bytes:
        return b"".join(map(bytes, self.pieces()))

    def save(self, write: Any, sink: int) -> int:
        return self.problem.guard(lambda: self.problem.lend(sink, self.pieces(), self.until_end))

    def load(self, data: int, size: int) -> int:
        raw = ctypes.string_at(data, size) if size else b""
        return self.problem.guard(lambda: self.put(raw))

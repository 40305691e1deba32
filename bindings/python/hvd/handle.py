"""An operation under way: wait for it, ask, or await it."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from ctypes import byref
from typing import Any, Callable, Generator, Sequence

from . import _abi
from .tensors import Array

_lib = _abi.lib


class Handle:
    """What an asynchronous form gives. Dropping it harms nothing: the operation goes on, and its memory is
    kept."""

    __slots__ = ("_op", "_finish", "_result", "_failure", "_done", "_lock", "name", "__weakref__")

    def __init__(self, operation: Any, name: str, result: Any = None,
                 finish: Callable[[Handle], Any] | None = None):
        """operation: of _submit.py. The result is finish(self) once it has completed, or the one that is
        known before."""
        self._op = operation  # every array that lies in its memory keeps it, too
        self._finish = finish
        self._result: Any = result
        self._failure: BaseException | None = None
        self._done = False
        self._lock = threading.Lock()
        self.name = name

    def done(self) -> bool:
        """Whether it has completed, in success or failure. Never blocks."""
        return self._done or self._op.done()

    poll = done

    def wait(self, timeout: float | None = None) -> Any:
        """Its result. After `timeout` seconds WaitTimeoutError, and it goes on; None: its own time-out bounds
        it."""
        if not self._done:
            self._settle(self._op.wait(None if timeout is None else _abi.nanoseconds(timeout)))
        if self._failure is not None:
            raise self._failure
        return self._result

    result = wait

    def _settle(self, problem: BaseException | None) -> None:
        with self._lock:
            if self._done:
                return
            try:
                if problem is not None:
                    self._failure = problem
                elif self._finish is not None:
                    self._result = self._finish(self)
            except Exception as why:
                self._failure = why
            self._finish = None
            self._done = True

    def exception(self) -> BaseException | None:
        """Why it failed; None if it did not, or not yet."""
        if not self._done and self.done():
            try:
                self.wait(0)
            except Exception:
                pass
        return self._failure

    def __await__(self) -> Generator[Any, None, Any]:
        if self.done():
            return self.wait()
        return (yield from self._await().__await__())

    async def _await(self) -> Any:
        """By the operation's descriptor: no thread waits."""
        if self._done:
            return self.wait()
        import asyncio  # not above: it takes longer to import than all of this package

        loop = asyncio.get_running_loop()
        own = os.dup(self.descriptor())  # a loop has one reader of each
        completed = loop.create_future()
        try:
            loop.add_reader(own, lambda: None if completed.done() else completed.set_result(None))
            await completed
        finally:
            loop.remove_reader(own)
            os.close(own)
        return self.wait()

    def descriptor(self) -> int:
        """Polls readable from its completion on; it belongs to the operation, and is not to be read or
        closed."""
        descriptor = ctypes.c_int32()
        _abi.check(_lib.hvd_op_get_fd, self._op.pointer, byref(descriptor))
        return descriptor.value

    def output(self, index: int = 0) -> Array:
        """The index-th output as the library has it; its memory is valid as long as the array is."""
        tensor = _abi.Tensor(ctypes.sizeof(_abi.Tensor))
        _abi.check(_lib.hvd_op_get_output, self._op.pointer, index, byref(tensor))
        return Array(tensor.data, tensor.dtype, tuple(tensor.shape[: tensor.ndim]), self._op)

    def received_splits(self) -> list[int]:
        """alltoall: rows that came from each member."""
        count = ctypes.c_size_t()
        _abi.check(_lib.hvd_op_get_received_splits, self._op.pointer, None, byref(count))
        splits = (ctypes.c_int64 * count.value)()
        _abi.check(_lib.hvd_op_get_received_splits, self._op.pointer, splits, byref(count))
        return list(splits[: count.value])

    def last_joined(self) -> int:
        rank = ctypes.c_int32()
        _abi.check(_lib.hvd_op_get_last_joined, self._op.pointer, byref(rank))
        return rank.value

    def __repr__(self) -> str:
        return f"<hvd.Handle {self.name!r} {'done' if self._done else 'under way'}>"


class Finished:
    """A handle, or several, with a last step: what a form gives that is made of others. It is used as they
    are."""

    def __init__(self, handles: Handle | Sequence[Handle], finish: Callable[[Any],
                                                                            Any] = lambda result: result):
        self._handles = handles if isinstance(handles, (list, tuple)) else None
        self._all: list[Handle] = list(handles) if self._handles is not None else [handles]  # type: ignore
        self._finish = finish
        self._lock = threading.Lock()
        self._result: list[Any] = []
        self.name = ", ".join(handle.name for handle in self._all)

    def done(self) -> bool:
        return all(handle.done() for handle in self._all)

    poll = done

    def wait(self, timeout: float | None = None) -> Any:
        """`timeout` is for all of them together."""
        until = None if timeout is None else time.monotonic() + timeout
        results = [
            handle.wait(None if until is None else max(0.0, until - time.monotonic())) for handle in self._all
        ]
        return self._settle(results)

    result = wait
    __call__ = wait

    def _settle(self, results: list[Any]) -> Any:
        with self._lock:
            if not self._result:
                self._result.append(self._finish(results if self._handles is not None else results[0]))
            return self._result[0]

    def exception(self) -> BaseException | None:
        return next(filter(None, (handle.exception() for handle in self._all)), None)

    def received_splits(self) -> list[int]:
        return self._all[0].received_splits()

    def __await__(self) -> Generator[Any, None, Any]:
        results = []
        for handle in self._all:
            results.append((yield from handle.__await__()))
        return self._settle(results)

    def __repr__(self) -> str:
        return f"<hvd.Handle {self.name!r} {'done' if self.done() else 'under way'}>"

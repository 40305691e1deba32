"""An operation under way: wait for it, ask, or await it."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from ctypes import byref
from typing import TYPE_CHECKING, Any, Callable, Generator, Sequence

from . import _abi
from .errors import TIMEOUT, InvalidError
from .tensors import Array

if TYPE_CHECKING:
    from .context import Context

_lib = _abi.lib
_wait = _lib.hvd_op_wait
_ERROR_SIZE = ctypes.sizeof(_abi.Error)
# A wait in the library lasts this long at most, so that Ctrl-C and cancelled tasks are seen in between.
_SLICE_NS = 200_000_000


class _Operation:
    """The native operation, kept by its handle and by every array that lies in its memory."""

    __slots__ = ("context", "pointer", "process", "loans")

    def __init__(self, context: Context, pointer: int, loans: object):
        self.context = context
        self.pointer = pointer
        self.process = context._owned.process
        self.loans = loans  # memory that it reads and writes, until it has completed

    def __del__(self) -> None:
        if self.process != os.getpid():
            return
        try:
            if self.loans is not None:
                ready = ctypes.c_int32()
                _lib.hvd_op_test(self.pointer, byref(ready), None)
                if not ready.value:
                    self.context._keep(self.pointer, self.loans)
                    return
            _lib.hvd_op_destroy(self.pointer)
        except Exception:  # the interpreter is going down
            pass


class Handle:
    """What an asynchronous form gives. Dropping it harms nothing: the operation goes on."""

    __slots__ = ("_op", "_finish", "_result", "_failure", "_done", "_lock", "name", "__weakref__")

    def __init__(self, context: Context, pointer: int, name: str, loans: object, finish: Callable[[Handle], Any]):
        self._op = _Operation(context, pointer, loans)
        self._finish: Callable[[Handle], Any] | None = finish
        self._result: Any = None
        self._failure: BaseException | None = None
        self._done = False
        self._lock = threading.Lock()
        self.name = name

    def _check_process(self) -> int:
        if self._op.process != os.getpid():
            raise InvalidError(f"operation {self.name!r} belongs to process {self._op.process}, and this is {os.getpid()}")
        return self._op.pointer

    def done(self) -> bool:
        """Whether it has completed, in success or failure. Never blocks."""
        if self._done:
            return True
        ready = ctypes.c_int32()
        _abi.check(_lib.hvd_op_test, self._check_process(), byref(ready))
        return bool(ready.value)

    poll = done

    def wait(self, timeout: float | None = None) -> Any:
        """Its result. After `timeout` seconds WaitTimeoutError, and it goes on; None: its own time-out bounds it."""
        if not self._done:
            pointer = self._check_process()
            error = _abi.Error(_ERROR_SIZE)
            left = None if timeout is None else _abi.nanoseconds(timeout)
            while True:
                piece = _SLICE_NS if left is None else min(_SLICE_NS, left)
                status = _wait(pointer, piece, byref(error))
                if status != TIMEOUT:
                    break
                if self.done():  # its own time-out: completed with HVD_TIMEOUT
                    status = _wait(pointer, _abi.DEFAULT_TIMEOUT, byref(error))
                    break
                if left is not None:
                    left -= piece
                    if left <= 0:
                        raise _abi.failure(status, error)
            self._settle(status, error)
        if self._failure is not None:
            raise self._failure
        return self._result

    result = wait

    def _settle(self, status: int, error: _abi.Error | None) -> None:
        with self._lock:
            if self._done:
                return
            try:
                if status:
                    self._failure = _abi.failure(status, error)
                elif self._finish is not None:
                    self._result = self._finish(self)
            except Exception as problem:
                self._failure = problem
            self._finish = None
            self._op.loans = None
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
        descriptor = ctypes.c_int32()
        _abi.check(_lib.hvd_op_get_fd, self._check_process(), byref(descriptor))
        own = os.dup(descriptor.value)  # a loop has one reader of each
        completed = loop.create_future()
        try:
            loop.add_reader(own, lambda: completed.done() or completed.set_result(None))
            await completed
        finally:
            loop.remove_reader(own)
            os.close(own)
        return self.wait()

    def output(self, index: int = 0) -> Array:
        """The index-th output as the library has it; its memory is valid as long as the array is."""
        tensor = _abi.Tensor(ctypes.sizeof(_abi.Tensor))
        _abi.check(_lib.hvd_op_get_output, self._check_process(), index, byref(tensor))
        return Array(tensor.data, tensor.dtype, tuple(tensor.shape[: tensor.ndim]), self._op)

    def received_splits(self) -> list[int]:
        """alltoall: rows that came from each member."""
        count = ctypes.c_size_t()
        _abi.check(_lib.hvd_op_get_received_splits, self._check_process(), None, byref(count))
        splits = (ctypes.c_int64 * count.value)()
        _abi.check(_lib.hvd_op_get_received_splits, self._check_process(), splits, byref(count))
        return list(splits[: count.value])

    def last_joined(self) -> int:
        rank = ctypes.c_int32()
        _abi.check(_lib.hvd_op_get_last_joined, self._check_process(), byref(rank))
        return rank.value

    def __repr__(self) -> str:
        return f"<hvd.Handle {self.name!r} {'done' if self._done else 'under way'}>"


class Finished:
    """A handle, or several, with a last step: what a form gives that is made of others. It is used as they are."""

    def __init__(self, handles: Handle | Sequence[Handle], finish: Callable[[Any], Any] = lambda result: result):
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
        results = [handle.wait(None if until is None else max(0.0, until - time.monotonic())) for handle in self._all]
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

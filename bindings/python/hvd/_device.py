"""Results in a GPU's memory: PyTorch allocates and scales them on the caller's stream, as the library does
neither."""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from contextlib import nullcontext
from typing import Any, Callable, Sequence

from .errors import InvalidError
from .handle import Handle
from .tensors import Borrowed

_LINGER_S = 5.0  # a program that trains calls again


def is_device(thing: Any) -> bool:
    """Whether it is a PyTorch tensor on a GPU: those of other libraries are given with `out`."""
    return bool(getattr(thing, "is_cuda", False)) and hasattr(thing, "untyped_storage")


def stream_of(tensor: Any) -> Any:
    """PyTorch's present stream on the tensor's device; None: the tensor lies in the host's memory."""
    if not is_device(tensor):
        return None
    import torch

    return torch.cuda.current_stream(tensor.device)


def on(stream: Any) -> Any:
    """A `with` in which PyTorch works on that stream; None: as it does."""
    if stream is None:
        return nullcontext()
    import torch

    return torch.cuda.stream(stream)


def follow(stream: Any) -> None:
    """Makes this thread's current stream wait for what that one has been given; None: there is nothing to
    wait for."""
    if stream is None:
        return
    import torch

    now = torch.cuda.current_stream(stream.device)
    if now != stream:
        now.wait_stream(stream)


def multiply(tensors: Sequence[Any], factor: float) -> None:
    """In place."""
    import torch

    for tensor in tensors:
        if not tensor.is_floating_point():
            raise InvalidError(
                f"prescale_factor or postscale_factor {factor} of a tensor of {tensor.dtype} on "
                f"{tensor.device}: expected one of floating point")
    with torch.no_grad():
        for tensor in tensors:
            tensor.mul_(factor)


def new_rows(source: Borrowed, rows: int) -> Any:
    """Memory for so many rows like the source's."""
    import torch

    like = source.owner[0]  # type: ignore[index]  # _from_torch's
    return torch.empty((rows, *source.shape[1:]), dtype=like.dtype, device=like.device)


def even_rows(rows: int, rank: int, size: int) -> int:
    """What the library gives this rank of `rows` rows."""
    return rows // size + (rank < rows % size)


class _Numbers:
    """Numbers unnamed operations. All ranks use the greatest of theirs, as newcomers have counted fewer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    def take(self) -> int:
        with self._lock:
            self._next += 1
            return self._next


numbers = _Numbers()


class _Beginner:
    """Begins second operations when the first ones are over: a thread that is there as long as there are any.
    """

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._waiting: deque[Sized] = deque()
        self._running = False

    def add(self, sized: Sized) -> None:
        with self._news:
            self._waiting.append(sized)
            if self._running:
                self._news.notify()
                return
            self._running = True
        threading.Thread(target=self._run, name="hvd-sizes", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._news:
                if not self._waiting and not self._news.wait_for(lambda: self._waiting, _LINGER_S):
                    self._running = False
                    return
                sized = self._waiting.popleft()
            sized._begin()
            del sized

    def forget(self) -> None:
        """In a child of fork(): the thread is the parent's."""
        self.__init__()  # type: ignore[misc]


_beginner = _Beginner()
os.register_at_fork(after_in_child=_beginner.forget)


class Sized:
    """A handle to an operation whose output's size depends on other ranks, which are asked first, in host
    memory.

    begin(what the first gave) -> the handle of the second, on whichever thread comes first.
    """

    def __init__(self, asked: Handle, begin: Callable[[Any], Handle], background: bool):
        self.name = asked.name
        self._asked = asked
        self._start: Callable[[Any], Handle] | None = begin
        self._lock = threading.Lock()
        self._handle: Handle | None = None
        self._failure: BaseException | None = None
        if background:
            _beginner.add(self)

    def _begin(self) -> None:
        """Waits for the first operation, within its own time-out, and begins the second."""
        problem: BaseException | None = None
        try:
            given = self._asked.wait()
        except BaseException as why:
            given, problem = None, why
        with self._lock:
            if self._start is None:
                return
            start, self._start = self._start, None
            if problem is None:
                try:
                    self._handle = start(given)
                except BaseException as why:
                    problem = why
            self._failure = problem

    def done(self) -> bool:
        with self._lock:
            return self._failure is not None or self._handle is not None and self._handle.done()

    poll = done

    def wait(self, timeout: float | None = None) -> Any:
        """As Handle's: the time is for each of the two operations."""
        if self._handle is None:
            if timeout is not None and not self._asked.done():
                try:
                    self._asked.wait(timeout)
                except Exception:
                    if not self._asked.done():
                        raise
            self._begin()
        if self._failure is not None:
            raise self._failure
        assert self._handle is not None
        return self._handle.wait(timeout)

    result = wait

    def exception(self) -> BaseException | None:
        if self._failure is None and self._handle is not None:
            return self._handle.exception()
        return self._failure

    def received_splits(self) -> list[int]:
        assert self._handle is not None
        return self._handle.received_splits()

    def __await__(self) -> Any:
        import asyncio

        return asyncio.to_thread(self.wait).__await__()


def words(values: Sequence[int]) -> Any:
    """Whole numbers as an array that the library takes."""
    return (ctypes.c_int64 * len(values))(*values)

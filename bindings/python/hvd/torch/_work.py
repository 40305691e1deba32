"""torch.distributed's Work over the library's operations: waiting, futures, and what is done when the data
have come."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import OrderedDict, deque
from datetime import timedelta
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist

from .._device import follow, on
from ._callbacks import HvdFuture, within

_LINGER_S = 5.0  # a program that trains asks for futures all the time
_THREADS = 16    # at most, all but one of them in callbacks


class _Completer:
    """Sets the futures of operations under way, from a thread that is there as long as there are any, and a
    little longer. While it runs a future's callbacks, which may wait for other futures, another thread goes
    on."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._works: deque[HvdWork] = deque()
        self._threads = 0
        self._idle = 0  # of them: neither in an operation's end nor in callbacks
        self._ending = False  # a thread is in an operation's end: one at a time, in their order

    def add(self, work: HvdWork) -> None:
        with self._news:
            self._works.append(work)
            self._call()

    def _call(self) -> None:
        """Finds a thread for the next operation. Past the bound a callback's own wait() ends it."""
        if self._ending or not self._works:
            return
        if self._idle:
            self._news.notify()
        elif self._threads < _THREADS:
            self._threads += 1
            self._idle += 1
            threading.Thread(target=self._run, name="hvd-futures", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._news:
                due = self._news.wait_for(lambda: self._works and not self._ending, _LINGER_S)
                self._idle -= 1
                if not due:
                    self._threads -= 1
                    return
                self._ending = True
                work = self._works.popleft()
            future = work._end_for_future()
            with self._news:
                self._ending = False
                self._call()
            if future is not None:
                try:
                    work._tell(future)
                except RuntimeError:  # the program has set it
                    pass
            del work, future
            with self._news:
                self._idle += 1

    def forget(self) -> None:
        """In a child of fork(): the threads are the parent's."""
        self.__init__()  # type: ignore[misc]


_completer = _Completer()
os.register_at_fork(after_in_child=_completer.forget)


# PyTorch 2.5's C++ part doesn't keep the Python object of a Work that it waits for: DDP would wait for ever.
_under_way: OrderedDict[int, HvdWork] = OrderedDict()
_over: OrderedDict[int, HvdWork] = OrderedDict()  # which nobody has waited for: without their tensors
_MOST = 4096  # of either


def _first(works: OrderedDict[int, Any]) -> tuple[int, Any, int]:
    """Takes the first one out; with the count of its references."""
    key, work = works.popitem(last=False)
    return key, work, sys.getrefcount(work)


# Of one that nothing else holds. Versions of Python differ in what they count: a local variable or not.
_ALONE = _first(OrderedDict({0: object()}))[2]


def let_go(most: int | None = None) -> None:
    """Looks at so many operations that nobody has waited for, or at all, and lets go of the tensors of those
    that are complete."""
    for _ in range(len(_under_way) if most is None else most):
        try:
            key, work, references = _first(_under_way)
        except KeyError:
            return
        if work._settled:
            continue
        if not work._handle.done():
            _under_way[key] = work  # at the end: the others' turn comes first
        elif references == _ALONE:  # no part of Python's holds it
            work._drop_tensors()
            _over[key] = work
            if len(_over) > _MOST:
                _over.popitem(last=False)


class HvdWork(dist._Work):
    """An operation under way: wait(), is_completed(), get_future(), result().

    `handle` has wait(timeout) and done(); `finish(what it gave)` puts the data where they belong and gives
    the result, in the thread that waits first. An operation whose handle is None is over. One on tensors of a
    device has been queued when it is complete: finish works on the `stream` that it was called on, for which
    the streams of all who wait do. `path` names an operation of all ranks, alike on each.
    """

    def __init__(self, handle: Any, finish: Callable[[Any], Any], source: Callable[[], int] = lambda: -1,
                 stream: torch.cuda.Stream | None = None, path: str | None = None):
        super().__init__()
        self._path = path
        self._stream = stream
        self._handle = handle
        self._finish: Callable[[Any], Any] | None = finish
        self._source = source
        self._lock = threading.Lock()
        self._future: HvdFuture | None = None
        self._value: Any = None
        self._problem: BaseException | None = None
        self._settled = False
        if handle is None:
            self._settle()
            return
        let_go(2)  # more than one comes: so each has its turn
        _under_way[id(self)] = self
        if len(_under_way) > _MOST:
            _under_way.popitem(last=False)

    def _end(self, timeout: float | None = None) -> HvdFuture | None:
        """Waits and finishes, once; the future, if there is one, that the caller then tells. TimeoutError: it
        goes on."""
        if self._settled:
            return None
        if self._handle is not None:
            try:
                self._handle.wait(timeout)
            except TimeoutError:
                if not self._handle.done():
                    raise
            except Exception:
                pass  # taken below, by whoever comes first
        with self._lock:
            if self._settled:
                return None
            assert self._finish is not None
            with on(self._stream):
                try:
                    self._value = self._finish(None if self._handle is None else self._handle.wait())
                except Exception as problem:
                    self._problem = problem
                return self._ended()

    def _ended(self) -> HvdFuture | None:
        self._finish = None
        self._settled = True
        _under_way.pop(id(self), None)
        return self._future

    def _end_for_future(self) -> HvdFuture | None:
        """As _end(); whatever happens here is the future's, and none of the thread's that sets it."""
        try:
            return self._end()
        except BaseException as problem:
            with self._lock:
                if self._settled:
                    return None
                self._problem = problem
                return self._ended()

    def _settle(self, timeout: float | None = None) -> None:
        future = self._end(timeout)
        if future is not None:
            self._tell(future)

    def _settle_future(self) -> None:
        future = self._end_for_future()
        if future is not None:
            self._tell(future)

    def _drop_tensors(self) -> None:
        self._settle()
        self._handle = self._value = None

    def _tell(self, future: HvdFuture) -> None:
        """Sets the future and runs its callbacks, which may ask this operation: no lock is held."""
        with on(self._stream), within(None):
            if isinstance(self._problem, Exception):
                future._fail(self._problem)
            elif self._problem is not None:  # which PyTorch's futures do not take
                future._fail(RuntimeError(f"{type(self._problem).__name__}: {self._problem}"))
            else:
                future._set(self._value)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._settle(timeout.total_seconds() or None)
        if self._problem is not None:
            raise self._problem
        follow(self._stream)
        return True

    synchronize = wait

    def is_completed(self) -> bool:
        if not self._settled and self._handle.done():
            self._settle()
        return self._settled

    def is_success(self) -> bool:
        return self.is_completed() and self._problem is None

    def exception(self) -> BaseException | None:
        return self._problem

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is not None:
                return self._future
            # With the device it has its callbacks, and whoever waits, wait for what the stream has.
            self._future = HvdFuture(self, self._path,
                                     None if self._stream is None else [self._stream.device])
            settled = self._settled
        if settled:
            self._tell(self._future)
        else:
            _completer.add(self)
        return self._future

    def result(self) -> Any:
        self.wait()
        return self._value

    def source_rank(self) -> int:
        return self._source()

    _source_rank = source_rank


class Several:
    """Operations that are waited for together, as one handle."""

    def __init__(self, works: Sequence[HvdWork]):
        self._works = works

    def wait(self, timeout: float | None = None) -> list[Any]:
        until = None if timeout is None else time.monotonic() + timeout
        problems = []
        for work in self._works:  # all of them, so that nothing is under way when the first error is told
            left = None if until is None else max(1e-6, until - time.monotonic())
            try:
                work.wait(timedelta(seconds=left or 0))
            except Exception as problem:
                if not work.is_completed() and left is not None:
                    raise  # this wait has ended, and the operations go on
                problems.append(problem)
        if problems:
            raise problems[0]
        return [work._value for work in self._works]

    def done(self) -> bool:
        return all(work.is_completed() for work in self._works)

"""Futures of operations, and the names of operations that their callbacks call."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Iterator

import torch

if TYPE_CHECKING:
    from ._work import HvdWork

_here = threading.local()


class Place:
    """One callback of one future. Which thread runs it, and when, differs from rank to rank: so operations
    that it calls meet by names made of its place, and not in the order of all calls."""

    def __init__(self, path: str):
        self._path = path
        self._calls = 0

    def name_next(self) -> str:
        self._calls += 1
        return self.last()

    def last(self) -> str:
        return f"{self._path}:{self._calls}"


def here() -> Place | None:
    """None: not in a callback."""
    return getattr(_here, "place", None)


@contextmanager
def within(place: Place | None) -> Iterator[None]:
    before, _here.place = here(), place
    try:
        yield
    finally:
        _here.place = before


class HvdFuture(torch.futures.Future):
    """The future of an operation at `path` (None: between two ranks only), or of a callback. A thread that
    waits for it ends the operation, if no other has."""

    def __init__(self, work: HvdWork | None, path: str | None, devices: list[torch.device] | None):
        super().__init__(devices=devices)
        self._work = work
        self._path = path
        self._devices = devices
        self._callbacks = 0

    def _next_place(self) -> Place | None:
        self._callbacks += 1
        return None if self._path is None else Place(f"{self._path}.{self._callbacks}")

    def then(self, callback: Callable[[Any], Any]) -> HvdFuture:
        place = self._next_place()
        path = None if self._path is None else f"{self._path}.{self._callbacks}"
        child = HvdFuture(self._work, path, self._devices)

        def run(_: Any) -> None:
            try:
                with within(place):
                    value = callback(self)
            except Exception as problem:
                child._fail(problem)
            else:
                child._set(value)

        super().add_done_callback(run)
        return child

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        place = self._next_place()

        def run(_: Any) -> None:
            with within(place):
                callback(self)

        super().add_done_callback(run)

    def wait(self) -> Any:
        work = self._work
        if work is not None:
            work._settle_future()
        return super().wait()

    def _set(self, value: Any) -> None:
        self._work = None  # which holds this future
        self.set_result(value)

    def _fail(self, problem: Exception) -> None:
        self._work = None
        self.set_exception(problem)

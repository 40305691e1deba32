"""Native handles, and Python objects behind native callbacks.

A handle is a ticket that the library checks at every call: one may be destroyed in any order, while other
threads use it, and in a forked child, where the library refuses it. So nothing is counted or locked here.
"""

from __future__ import annotations

import atexit
import itertools
import os
import time
import weakref
from typing import Callable


class Native:
    """A handle of the library's, which is destroyed with this."""

    __slots__ = ("pointer", "process", "closed", "_destroy", "__weakref__")

    def __init__(self, pointer: int | None, destroy: Callable[[int], None]):
        assert pointer is not None
        self.pointer = pointer
        self.process = os.getpid()
        self.closed = False
        self._destroy = destroy

    @property
    def ours(self) -> bool:
        """Whether this process made it, and not one that it was forked from."""
        return self.process == os.getpid()

    def close(self) -> None:
        """Destroys it. Again: nothing. Later calls on it are a ClosedError."""
        if not self.closed:
            self.closed = True
            self._destroy(self.pointer)

    _at_exit = close

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # it never came to be, or the interpreter is going down
            pass


class Registry:
    """Python objects behind the userdata of native callbacks, until the library says that it is done."""

    def __init__(self) -> None:
        self._objects: dict[int, object] = {}
        self._numbers = itertools.count(1)  # no lock, which a forked child could find locked

    def add(self, thing: object) -> int:
        number = next(self._numbers)
        self._objects[number] = thing
        return number

    def get(self, number: int):
        return self._objects.get(number)

    def remove(self, number: int) -> None:
        self._objects.pop(number, None)

    def __len__(self) -> int:
        return len(self._objects)


_counts: list[Callable[[], int]] = []


def count_calls(count: Callable[[], int]) -> None:
    """count() tells how many calls threads are in."""
    _counts.append(count)


_closers: weakref.WeakSet = weakref.WeakSet()


def close_at_exit(thing) -> None:
    """thing._at_exit() will be called while the interpreter is whole: no library thread may call in later."""
    _closers.add(thing)


@atexit.register
def _close_all() -> None:
    for thing in list(_closers):
        try:
            thing._at_exit()
        except Exception:
            pass
    # Their calls are over, and threads on their way out of them: what these then free may call back into the
    # interpreter.
    deadline = time.monotonic() + 5
    while any(count() for count in _counts) and time.monotonic() < deadline:
        time.sleep(0.001)

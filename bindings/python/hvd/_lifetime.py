"""Who may use a native handle, and when it is freed.

C says: no call may be running on what is destroyed, and states, samplers and sets go before their context. Here
every call holds the handle (`with owned as pointer`), and a close that comes meanwhile takes effect when
the last call is out. A handle of a forked child's parent is refused, and never freed by the child.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import time
import weakref
from typing import Callable

from .errors import ClosedError, InvalidError


class Owned:
    """A native object. Without `root` it is one (a context, a driver) that others belong to."""

    def __init__(self, pointer: int, destroy: Callable[[int], None], what: str, root: Owned | None = None):
        self._pointer: int | None = pointer
        self._destroy = destroy
        self.what = what
        self.process = os.getpid()
        self._busy = 0
        self._doomed: int | None = None
        self._root = root
        self._lock: threading.RLock = root._lock if root is not None else threading.RLock()
        self._children: weakref.WeakSet[Owned] = weakref.WeakSet()
        if root is not None:
            with self._lock:
                root._children.add(self)

    def __enter__(self) -> int:
        if not self.ours:
            raise InvalidError(f"{self.what} belongs to process {self.process}: a forked process "
                               f"({os.getpid()}) needs one of its own")
        with self._lock:
            if self._pointer is None:
                raise ClosedError(f"{self.what} was closed")
            self._busy += 1
            if self._root is not None:
                self._root._busy += 1
            return self._pointer

    def __exit__(self, *_: object) -> None:
        root = self._root
        with self._lock:
            self._busy -= 1
            mine = self._take_doomed()
            if root is not None:
                root._busy -= 1
        if mine is not None:
            self._destroy(mine)
        if root is not None:
            with self._lock:
                roots = root._take_doomed()
            if roots is not None:
                root._destroy(roots)

    def _take_doomed(self) -> int | None:
        if self._busy == 0:
            doomed, self._doomed = self._doomed, None
            return doomed
        return None

    @property
    def ours(self) -> bool:
        """Whether this process made it, and not one that it was forked from."""
        return self.process == os.getpid()

    @property
    def closed(self) -> bool:
        return self._pointer is None

    def close(self) -> None:
        """Frees it now, or when the last call that runs on it is out. Again: nothing."""
        if not self.ours:
            return
        for child in list(self._children):
            child.close()
        with self._lock:
            if self._pointer is None:
                return
            pointer, self._pointer = self._pointer, None
            if self._busy:
                self._doomed = pointer
                return
        self._destroy(pointer)

    def wait_until_idle(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while self._busy and time.monotonic() < deadline:
            time.sleep(0.001)  # only at exit, where daemon threads are on their way out of the library
        return not self._busy

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter is going down and names are gone
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

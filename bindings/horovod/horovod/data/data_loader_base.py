"""A loader of batches, and a mixin that loads them in a thread while the program computes."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Callable, Iterable, Iterator


class BaseDataLoader:
    """A subclass defines __len__, the number of batches, and _iterate, which yields those of one pass."""

    def __len__(self) -> int:
        raise NotImplementedError

    def _iterate(self) -> Iterable[Any]:
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        """What the program gets for a batch; called in the thread that iterates."""
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """class Loader(AsyncDataLoaderMixin, SomeLoader): a thread calls _iterate() and keeps batches ready.

    async_loader_queue_size: how many at most; 0: no thread. Each pass over the loader has a thread of its
    own, which ends with the pass, however it ends. An exception of _iterate() comes out of the pass.
    debug_data_loader has no effect.
    """

    def __init__(self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any,
                 **kwargs: Any):
        if async_loader_queue_size < 0:
            raise ValueError(f"async_loader_queue_size is {async_loader_queue_size}: expected 0 or more")
        self.async_loader_queue_size = async_loader_queue_size
        self.debug_data_loader = debug_data_loader
        self._passes: set[_Pass] = set()
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size == 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        mine = _Pass(self._iterate, self.async_loader_queue_size)  # type: ignore[attr-defined]
        self._passes.add(mine)
        try:
            for batch in mine.batches():
                yield self._process_batch(batch)  # type: ignore[attr-defined]
        finally:
            self._passes.discard(mine)
            mine.close()  # without a wait: the interpreter may be ending, and its daemon threads stand still

    def close_async_loader(self) -> None:
        """Ends the passes that are under way, and waits until their threads have ended."""
        for one in list(self._passes):
            one.close()
            one.thread.join()


class _Pass:
    """One pass over the batches: the thread that loads them, and those that are ready."""

    def __init__(self, iterate: Callable[[], Iterable[Any]], limit: int):
        self._limit, self._changed = limit, threading.Condition()
        self._ready: deque[Any] = deque()
        self._over, self._failure = False, None
        self.thread = threading.Thread(target=self._load, args=(iterate,), name="horovod data", daemon=True)
        self.thread.start()

    def _load(self, iterate: Callable[[], Iterable[Any]]) -> None:
        failure = None
        try:
            for batch in iterate():
                with self._changed:
                    self._changed.wait_for(lambda: self._over or len(self._ready) < self._limit)
                    if self._over:
                        return
                    self._ready.append(batch)
                    self._changed.notify_all()
        except BaseException as error:
            failure = error
        with self._changed:
            self._over, self._failure = True, failure
            self._changed.notify_all()

    def batches(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._ready)
                if not self._ready:
                    if self._failure is not None:
                        raise self._failure
                    return
                batch = self._ready.popleft()
                self._changed.notify_all()
            yield batch

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._ready.clear()
            self._changed.notify_all()

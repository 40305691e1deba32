"""One worker: its place in the job, its life, its news. The collectives are in collectives.py."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import weakref
from ctypes import byref, c_int32, c_size_t, c_uint64, c_void_p
from typing import Any, AsyncIterator, Callable, Iterable

from . import _abi
from ._handles import Native, Registry, close_at_exit
from ._options import LogCallback, NativeOptions, OptionValue
from ._submit import operation_of
from .collectives import Collectives
from .errors import HvdError, InvalidError
from .facts import (COLLECTIVES, MEMORIES, BackendChoice, BackendInfo, Event, EventKind, Membership,
                    Recovery, code_of, plain_of)
from .process_set import ProcessSet
from .tensors import CODES

_lib = _abi.lib
_PARKING = "shutdown that keeps the place"  # where all ranks meet
_PATIENCE = 60.0  # seconds for the others to come there
_LAST_WORD = 1.0  # seconds for the word that a worker is done, where nobody is waited for


_listeners = Registry()


@_abi.ListenerFn
def _listen(userdata, event):
    listener = _listeners.get(userdata)
    try:
        listener(plain_of(Event, event.contents))
    except Exception as problem:
        sys.unraisablehook(type("Problem", (), dict(exc_type=type(problem), exc_value=problem,
                                                    exc_traceback=problem.__traceback__, object=listener,
                                                    err_msg="in an hvd listener"))())


@_abi.DestroyFn
def _forget_listener(userdata):
    _listeners.remove(userdata)


def in_thread(function: Callable[[], Any]) -> Any:
    """Calls it in a thread of its own, so that Ctrl-C gets through to whoever waits for it."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    box: dict[str, Any] = {}

    def work() -> None:
        try:
            box["result"] = function()
        except BaseException as problem:
            box["problem"] = problem

    thread = threading.Thread(target=work, name="hvd-call", daemon=True)
    thread.start()
    thread.join()
    if "problem" in box:
        raise box["problem"]
    return box["result"]


def _load_ahead() -> None:
    """What the first step would load. Who trains waits for a newcomer from its connect() to its sync, and
    PyTorch loads its compiler when the first optimizer is made: a second, or several."""
    if "hvd.torch" in sys.modules and os.environ.get("HVD_DRIVER"):
        with contextlib.suppress(Exception):  # PyTorch will say it, or is too old to have one
            importlib.import_module("torch._dynamo")


class Context(Collectives):
    """A worker. Options are keywords (docs/options.md); what is not given comes from the environment
    (HVD_...).

    `log` gets (level, line) from the library's threads; without it, lines go to logging.getLogger("hvd").
    Several contexts may live in one process; the functions of the package use the one that hvd.init made.
    With connect=False it has joined no job yet: listeners, states and samplers may be made from it, and
    connect() joins, or elastic.run.
    """

    def __init__(self, *, log: LogCallback | None = None, process_sets: Iterable[ProcessSet] = (),
                 connect: bool = True, **options: OptionValue):
        pointer = c_void_p()
        with NativeOptions(options, log) as native:
            _abi.check(_lib.hvd_context_create, native, byref(pointer))
        self._handle = Native(pointer.value, _lib.hvd_destroy)
        self._shut_down = False
        self._run_failed = False
        self._parked = False
        self._connected = False
        self._when_connected: list[Callable[[], None]] = []
        self._options = dict(options)
        self._before_close: list[Callable[[], None]] = []  # of whoever else uses the native context
        self._process_sets: weakref.WeakSet[ProcessSet] = weakref.WeakSet()
        self._process_set_count = 0
        close_at_exit(self)
        try:
            if connect:
                self.connect()
            for process_set in process_sets:
                self.add_process_set(process_set)
        except BaseException:
            self._shut_down = True  # nobody has seen it
            self._handle.close()
            raise

    def connect(self, timeout: float | None = None) -> None:
        """Joins the job, and waits until this worker is a member of a generation: for a context that was made
        with connect=False. None: option init_timeout. Once; another thread's close() ends it with
        ClosedError."""
        _load_ahead()
        pointer = c_void_p()
        _abi.check(_lib.hvd_connect_begin, self._handle.pointer,
                   _abi.DEFAULT_TIMEOUT if timeout is None else _abi.nanoseconds(timeout), byref(pointer))
        assert pointer.value is not None
        problem = operation_of(pointer.value).wait(None)  # in which Ctrl-C is seen
        if problem is not None:
            raise problem
        self._connected = True
        while self._when_connected:
            self._when_connected.pop(0)()

    # ---- place in the job ----

    def membership(self) -> Membership:
        """All in one, from one generation. ClosedError after shutdown."""
        raw = _abi.Membership()
        _abi.check(_lib.hvd_get_membership, self._handle.pointer, byref(raw))
        return plain_of(Membership, raw)

    def _place(self, shorthand: Callable[[int], int], field: str) -> int:
        value = shorthand(self._handle.pointer)
        return value if value >= 0 else getattr(self.membership(), field)  # which says why there is none

    def rank(self) -> int:
        return self._place(_lib.hvd_rank, "rank")

    def size(self) -> int:
        return self._place(_lib.hvd_size, "size")

    def local_rank(self) -> int:
        return self._place(_lib.hvd_local_rank, "local_rank")

    def local_size(self) -> int:
        return self._place(_lib.hvd_local_size, "local_size")

    def cross_rank(self) -> int:
        return self._place(_lib.hvd_cross_rank, "cross_rank")

    def cross_size(self) -> int:
        return self._place(_lib.hvd_cross_size, "cross_size")

    def generation(self) -> int:
        return _lib.hvd_generation(self._handle.pointer) or self.membership().generation

    def backend(self) -> BackendInfo:
        raw = _abi.BackendInformation()
        _abi.check(_lib.hvd_get_backend, self._handle.pointer, byref(raw))
        return plain_of(BackendInfo, raw)

    def backend_choice(self, collective: str = "allreduce", dtype: str = "float32",
                       memory: str = "host") -> BackendChoice:
        """Which backend serves such an operation in the present generation, and why. UnsupportedError: none.
        """
        raw = _abi.BackendSelection()
        codes = (code_of(MEMORIES, memory, "memory"), code_of(CODES, dtype, "dtype"),
                 code_of(COLLECTIVES, collective, "collective"))
        _abi.check(_lib.hvd_get_backend_choice, self._handle.pointer, *codes, byref(raw))
        return plain_of(BackendChoice, raw)

    def add_process_set(self, process_set: ProcessSet | Iterable[int]) -> ProcessSet:
        """Makes the set (or one of these ranks) usable in this context."""
        chosen = process_set if isinstance(process_set, ProcessSet) else ProcessSet(list(process_set))
        chosen._bind(self)
        self._process_set_count += 1
        chosen.process_set_id = self._process_set_count
        self._process_sets.add(chosen)
        return chosen

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Whether it was one of this context's."""
        if process_set not in self._process_sets:
            return False
        self._process_sets.discard(process_set)
        process_set.remove()
        return True

    def _process_set(self, number: int) -> ProcessSet:
        for process_set in self._process_sets:
            if process_set.process_set_id == number:
                return process_set
        raise InvalidError(f"process_set_id={number}: expected 0 (all ranks) or the number of a process set")

    def _share_process_set(self, process_set: ProcessSet) -> None:
        """For init() again: a set like one that is there is that one."""
        for mine in self._process_sets:
            if mine._handle is not None and (mine is process_set or
                                             process_set._handle is None and process_set._same(mine)):
                process_set._handle, process_set.process_set_id = mine._handle, mine.process_set_id
                return
        raise InvalidError(f"{process_set!r}: the context exists, and has no such process set: "
                           "hvd.add_process_set adds one, on every rank alike")

    def _check_same(self, options: dict[str, OptionValue]) -> None:
        for key, value in options.items():
            if value is not None and value != self._options.get(key):
                raise InvalidError(f"{key}={value!r}: the context exists already, made with "
                                   f"{key}={self._options.get(key)!r}; options are for the first hvd.init()")

    # ---- life ----

    @property
    def closed(self) -> bool:
        return self._shut_down or self._handle.closed

    def shutdown(self, timeout: float | None = None) -> None:
        """Says that this worker is done and waits until all are, then closes. Again: nothing."""
        if self._handle.closed or self._shut_down:
            return
        nanoseconds = _abi.DEFAULT_TIMEOUT if timeout is None else _abi.nanoseconds(timeout)

        def leave() -> None:
            _abi.check(_lib.hvd_shutdown, self._handle.pointer, nanoseconds)

        try:
            in_thread(leave)
        finally:
            self._shut_down = True

    def _park(self, timeout: float | None) -> bool:
        """A shutdown after which the place in the job is kept. False: it can't be, and nothing was done.

        All ranks meet, so that none is in an operation of the life that ends. Who has lost a peer, or is to
        leave, is shut down for good.
        """
        import multiprocessing

        stays = "HVD_DRIVER" in os.environ and multiprocessing.parent_process() is None
        if self.closed or not self._handle.ours or not stays or self._run_failed or self.has_left():
            return False
        try:
            self.barrier(_PARKING, timeout=_PATIENCE if timeout is None else timeout)
        except HvdError:
            return False
        for process_set in [*self._process_sets]:
            self.remove_process_set(process_set)
        self._process_set_count = 0
        try:
            self.stop_timeline()
        except HvdError:  # there is none, or its file is full
            pass
        self._parked = True
        return True

    def _return(self, process_sets: Iterable[ProcessSet]) -> None:
        """Once more in use after _park."""
        for process_set in process_sets:
            self.add_process_set(process_set)
        self._parked = False

    def leave(self, timeout: float | None = None) -> None:
        """Asks that this worker may go, from any thread, and returns at once: at the next commit or check the
        others go on without it and repeat nothing, and elastic.run returns here. Past the time-out (None:
        option leave_timeout) it is lost."""
        nanoseconds = _abi.DEFAULT_TIMEOUT if timeout is None else _abi.nanoseconds(timeout)
        _abi.check(_lib.hvd_leave, self._handle.pointer, nanoseconds)

    def has_left(self) -> bool:
        """Whether this worker has gone so: its training is not complete then, though elastic.run has
        returned."""
        return not self._handle.closed and bool(_lib.hvd_has_left(self._handle.pointer))

    def abort(self, reason: str = "aborted by the program") -> None:
        """Closes at once, from any thread: pending calls end with ClosedError. To the job a worker is lost.
        """
        self._shut_down = True
        _abi.check(_lib.hvd_abort, self._handle.pointer, _abi.text(reason, "reason"))

    def close(self) -> None:
        """Frees the context, after abort() if it was not shut down."""
        if not self._handle.closed:
            if not self._shut_down:
                self.abort("closed without shutdown")
            self._release()
            self._handle.close()

    def _release(self) -> None:
        while self._before_close:
            self._before_close.pop()()

    def __del__(self) -> None:
        """Operations end with the context, which comes before their memory, and their handles last."""
        try:
            self._release()
            self._handle.close()
        except Exception:  # it never came to be, or the interpreter is going down
            pass

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        """Shut down if the block came to its end; aborted if it was left by an exception."""
        try:
            if kind is None:
                self.shutdown()
        finally:
            self.close()

    def _at_exit(self) -> None:
        """A script that ends normally is done; one that ends by an exception is a worker lost.

        One that had been shut down, and had kept its place, was done then: its exit status says the rest.
        """
        if self._handle.closed or not self._handle.ours:
            return
        try:
            if self._parked:
                self.shutdown(_LAST_WORD)
            elif not self._shut_down and not self._run_failed and getattr(sys, "last_value", None) is None:
                self.shutdown()
        except HvdError:
            pass
        if not self._shut_down:
            self.abort("the process ends")
        self._release()
        self._handle.close()

    # ---- news ----

    def recoveries(self) -> list[Recovery]:
        """Oldest first."""
        count = c_size_t()
        found = []
        _abi.check(_lib.hvd_get_recovery_count, self._handle.pointer, byref(count))
        for index in range(count.value):
            raw = _abi.Recovery()
            _abi.check(_lib.hvd_get_recovery, self._handle.pointer, index, byref(raw))
            found.append(plain_of(Recovery, raw))
        return found

    def register_listener(self, listener: Callable[[Event], None], kinds: int = EventKind.ALL) -> int:
        """Called from a thread of the library that does nothing else; gives a number to remove it by."""
        number = c_uint64()
        _abi.check(_lib.hvd_register_listener, self._handle.pointer, int(kinds), _listen,
                   _listeners.add(listener), _forget_listener, byref(number))
        return number.value

    def remove_listener(self, number: int) -> None:
        _abi.check(_lib.hvd_remove_listener, self._handle.pointer, number)

    def event_fd(self) -> int:
        """Polls readable while next_event has something to give; it belongs to the context."""
        descriptor = c_int32()
        _abi.check(_lib.hvd_get_event_fd, self._handle.pointer, byref(descriptor))
        return descriptor.value

    def next_event(self) -> Event | None:
        raw, available = _abi.Event(), c_int32()
        _abi.check(_lib.hvd_next_event, self._handle.pointer, byref(raw), byref(available))
        return plain_of(Event, raw) if available.value else None

    async def events(self) -> AsyncIterator[Event]:
        """`async for event in context.events()`: no thread, the loop watches the descriptor. Of several
        iterators each event comes to one."""
        import asyncio  # not above: it takes longer to import than all of this package

        loop, news = asyncio.get_running_loop(), asyncio.Event()
        own = os.dup(self.event_fd())  # a loop has one reader of each
        loop.add_reader(own, news.set)
        try:
            while True:
                event = self.next_event()
                if event is not None:
                    yield event
                    continue
                news.clear()
                await news.wait()
        finally:
            loop.remove_reader(own)
            os.close(own)

    def start_timeline(self, path: str, mark_cycles: bool = False) -> None:
        """`mark_cycles` is Horovod's; there are no cycles here."""
        _abi.check(_lib.hvd_timeline_start, self._handle.pointer, _abi.text(path, "path"))

    def stop_timeline(self) -> None:
        _abi.check(_lib.hvd_timeline_stop, self._handle.pointer)

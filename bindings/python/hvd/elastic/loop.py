"""The elastic run loop: hvd_run_begin, hvd_run_next, hvd_run_end around a Python function."""

from __future__ import annotations

from ctypes import byref, c_int32, c_void_p
from functools import wraps
from typing import Any, Callable, Concatenate, ParamSpec, TypeVar

from .. import _abi
from .._default import enter, is_default
from .._horovod import export_place
from .._handles import Native
from ..errors import CALLBACK_FAILED, HOSTS_UPDATED, OK, PEER_LOST, HvdError
from .state import State

_lib = _abi.lib
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=State)


def run(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Decorator: function(state, ...) is called until it returns; its result is the call's.

    HorovodInternalError out of it: the last commit is restored, the next generation joined, the state synced,
    and the reset callbacks called before it is called again. HostsUpdatedInterrupt: the same with the live
    values. Any other exception ends the run.
    """

    @wraps(function)
    def wrapper(state: S, *arguments: P.args, **options: P.kwargs) -> R:
        return _run(state, lambda: function(state, *arguments, **options))

    return wrapper


def _advance(state: State, loop: Native, last: int) -> bool:
    again = c_int32()
    try:
        with state._in_use("run"):
            if last != OK:  # what is to be restored or synced
                state._check_memory()
            _abi.check(_lib.hvd_run_next, loop.pointer, last, byref(again))
    except HvdError as error:
        raise state._why(error)
    state._synced()
    return bool(again.value)


def _run(state: State, train: Callable[[], R]) -> R:
    context = state._context
    if not context._connected:
        enter(context)
    pointer = c_void_p()
    state._check_memory()
    _abi.check(_lib.hvd_run_begin, context._handle.pointer, state._handle.pointer, byref(pointer))
    loop = Native(pointer.value, _lib.hvd_run_end)
    context._run_failed = True  # until it has ended well
    result: Any = None
    listener = state._hear_of_hosts()
    last, began = OK, False
    try:
        while _advance(state, loop, last):
            try:
                if is_default(context):
                    export_place(context)
                if began:
                    state.on_reset()
                began = True
                if state._overrides("sync"):
                    state.sync()
                result = train()
                last = OK
            except HvdError as error:
                if error.status not in (PEER_LOST, HOSTS_UPDATED):
                    _end(state, loop, error.status)
                    raise
                last = error.status
                if last == PEER_LOST and state._overrides("restore"):
                    state.restore()
            except BaseException:
                _end(state, loop, CALLBACK_FAILED)
                raise
        context._run_failed = False
        return result
    finally:
        loop.close()
        try:
            context.remove_listener(listener)
        except HvdError:  # the context is gone, and its listeners with it
            pass


def _end(state: State, loop: Native, status: int) -> None:
    """Tells the loop that the function failed for good: its own exception says why, and the loop's answer
    adds nothing."""
    try:
        _advance(state, loop, status)
    except HvdError:
        pass

"""include/hvd/hvd.h and include/hvd/driver.h in ctypes: structs, callbacks, prototypes, statuses into
exceptions.

The library is loaded with ctypes.CDLL: the interpreter's lock is released in every call, and taken again by
callbacks. Every struct's struct_size is set by its constructor.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t,
                    c_uint32, c_uint64, c_void_p)
from functools import partial
from operator import index, ne
from threading import get_ident
from typing import Any, Callable

from ._constants import DEFAULT_TIMEOUT as DEFAULT_TIMEOUT, MAX_DIMS, SAMPLER_SAVED_BYTES as SAMPLER_SAVED_BYTES
from ._library import LibraryError, load
from .errors import BY_STATUS, HvdError, InvalidError

lib, LIBRARY_PATH = load()

Status = c_int32


class Sized(Structure):
    """A struct that begins with struct_size."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class Error(Structure):
    _fields_ = [("struct_size", c_size_t), ("status", Status), ("rank", c_int32), ("generation", c_uint64),
                ("vendor_code", c_int64), ("backend", c_char * 16), ("message", c_char * 512)]


class Tensor(Structure):
    _fields_ = [("struct_size", c_size_t), ("data", c_void_p), ("dtype", c_int32), ("ndim", c_int32),
                ("shape", c_int64 * MAX_DIMS), ("memory", c_int32), ("device", c_int32), ("stream", c_void_p)]


class Membership(Sized):
    _fields_ = [("struct_size", c_size_t), ("rank", c_int32), ("size", c_int32), ("local_rank", c_int32),
                ("local_size", c_int32), ("cross_rank", c_int32), ("cross_size", c_int32), ("generation", c_uint64),
                ("membership_epoch", c_uint64), ("worker", c_uint64), ("term", c_uint64)]


class BackendInformation(Sized):
    _fields_ = [("struct_size", c_size_t), ("name", c_char * 16), ("version", c_char * 64), ("path", c_char * 512),
                ("detail", c_char * 256), ("dtypes", c_uint64), ("collectives", c_uint64)]


class BackendReport(Sized):
    _fields_ = [("struct_size", c_size_t), ("name", c_char * 16), ("version", c_char * 64), ("path", c_char * 512),
                ("usable", c_int32), ("abi_version", c_uint32), ("memories", c_uint64), ("dtypes", c_uint64),
                ("collectives", c_uint64), ("local", c_int32), ("max_instances", c_int32), ("reason", c_char * 512)]


class BackendSelection(Sized):
    _fields_ = [("struct_size", c_size_t), ("name", c_char * 16), ("reason", c_char * 512)]


class ProcessSetInformation(Sized):
    _fields_ = [("struct_size", c_size_t), ("rank", c_int32), ("size", c_int32), ("local_rank", c_int32),
                ("local_size", c_int32), ("cross_rank", c_int32), ("cross_size", c_int32), ("generation", c_uint64)]


class Request(Structure):
    _fields_ = [("struct_size", c_size_t), ("collective", c_int32), ("root", c_int32), ("name", c_char_p),
                ("inputs", POINTER(Tensor)), ("outputs", POINTER(Tensor)), ("count", c_size_t),
                ("reduction", c_int32), ("priority", c_int32), ("prescale", c_double), ("postscale", c_double),
                ("splits", POINTER(c_int64)), ("split_count", c_size_t), ("process_set", c_void_p),
                ("timeout_ns", c_int64)]


class StateStatistics(Sized):
    _fields_ = [("struct_size", c_size_t), ("revision", c_uint64), ("commits", c_uint64), ("restores", c_uint64),
                ("syncs", c_uint64), ("bytes", c_uint64), ("sync_sent_bytes", c_uint64),
                ("sync_received_bytes", c_uint64), ("last_commit_ns", c_int64), ("written_bytes", c_uint64),
                ("shard_bytes", c_uint64), ("copy_bytes", c_uint64), ("fed_bytes", c_uint64)]


class Shard(Sized):
    _fields_ = [("struct_size", c_size_t), ("key", c_char_p), ("dtype", c_int32), ("rank", c_int32), ("size", c_int32),
                ("reserved", c_int32), ("global_elements", c_int64), ("offset", c_int64), ("elements", c_int64),
                ("data", c_void_p)]


class SamplerOptions(Sized):
    _fields_ = [("struct_size", c_size_t), ("samples", c_uint64), ("batch_size", c_uint64), ("seed", c_uint64),
                ("in_order", c_int32), ("padding", c_int32)]


class SamplerBatch(Sized):
    _fields_ = [("struct_size", c_size_t), ("generation", c_uint64), ("epoch", c_uint64), ("position", c_uint64),
                ("count", c_uint64), ("total", c_uint64)]


class SamplerInformation(Sized):
    _fields_ = [("struct_size", c_size_t), ("epoch", c_uint64), ("samples", c_uint64), ("batch_size", c_uint64),
                ("processed", c_uint64), ("remaining", c_uint64), ("rounds", c_uint64)]


class Recovery(Sized):
    _fields_ = [("struct_size", c_size_t), ("from_generation", c_uint64), ("to_generation", c_uint64),
                ("cause", Status), ("from_size", c_int32), ("to_size", c_int32), ("attempts", c_int32),
                ("revision", c_uint64), ("began_at_ns", c_int64), ("detection_ns", c_int64), ("abort_ns", c_int64),
                ("restore_ns", c_int64), ("forming_ns", c_int64), ("connecting_ns", c_int64), ("sync_ns", c_int64),
                ("total_ns", c_int64), ("sync_bytes", c_uint64), ("reason", c_char * 256), ("spares", c_int32)]


class Event(Sized):
    _fields_ = [("struct_size", c_size_t), ("kind", c_uint32), ("lost", c_uint32), ("sequence", c_uint64),
                ("generation", c_uint64), ("membership_epoch", c_uint64), ("rank", c_int32), ("size", c_int32),
                ("message", c_char * 256)]


class Launch(Structure):
    _fields_ = [("struct_size", c_size_t), ("worker", c_uint64), ("host", c_char_p), ("slot", c_int32),
                ("environment", POINTER(c_char_p))]


class DriverStatus(Sized):
    _fields_ = [("struct_size", c_size_t), ("phase", c_int32), ("size", c_int32), ("workers", c_int32),
                ("slots", c_int32), ("resets", c_int32), ("generation", c_uint64), ("membership_epoch", c_uint64),
                ("hosts_blocked", c_int32), ("port", c_int32), ("sentence", c_char * 512), ("stall", c_char * 512),
                ("try_again", c_int32), ("stalled", c_int32), ("term", c_uint64), ("goodput", c_double),
                ("commits_per_second", c_double), ("commits", c_uint64), ("sync_bytes", c_uint64), ("wall_ns", c_int64),
                ("last_recovery_ns", c_int64)]


DestroyFn = CFUNCTYPE(None, c_void_p)
LogFn = CFUNCTYPE(None, c_void_p, c_int32, c_char_p)
WriteFn = CFUNCTYPE(c_int32, c_void_p, c_char_p, c_size_t)
SaveFn = CFUNCTYPE(c_int32, c_void_p, WriteFn, c_void_p)
LoadFn = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_size_t)
ResetFn = CFUNCTYPE(c_int32, c_void_p)
ReshardFn = CFUNCTYPE(c_int32, c_void_p, POINTER(Shard))
LostFn = CFUNCTYPE(c_int32, c_void_p, c_char_p)
ListenerFn = CFUNCTYPE(None, c_void_p, POINTER(Event))
AddHostFn = CFUNCTYPE(c_int32, c_void_p, c_char_p, c_int32)
DiscoverFn = CFUNCTYPE(c_int32, c_void_p, AddHostFn, c_void_p)
LaunchFn = CFUNCTYPE(c_int32, c_void_p, POINTER(Launch))
StopFn = CFUNCTYPE(None, c_void_p, c_uint64, c_int32)
OutputFn = CFUNCTYPE(None, c_void_p, c_int32, c_char_p, c_int32, c_int32, c_char_p)

_DONE = 0x600D


def fails_unless_done(prototype: Any) -> Callable[[Callable[..., int]], Any]:
    """Decorator: a callback that fails (1) unless the function has returned 0. Where a function of Python's
    raises, as at its very beginning by Ctrl-C, ctypes gives C a 0 of its own, which means success there. So
    that function is called by ctypes' own code alone, which takes anything but _DONE for failure."""

    def decorate(function: Callable[..., int]) -> Any:
        def done(*arguments: Any) -> int:
            return 0 if function(*arguments) else _DONE

        inner = CFUNCTYPE(c_int32, *prototype._argtypes_)(done)
        inner.restype = partial(ne, _DONE)
        return prototype(inner)

    return decorate

_P, _S, _I, _L, _U, _N = c_void_p, c_char_p, c_int32, c_int64, c_uint64, c_size_t
_E = POINTER(Error)
_T = POINTER(Tensor)


def _pointers(*types):
    return [POINTER(kind) for kind in types]


# Result (None: a status) and arguments but for the last one, `error`, which functions with a status have.
_PROTOTYPES = {
    "hvd_status_name": (_S, [Status]),
    "hvd_dtype_size": (c_size_t, [c_int32]),
    "hvd_version": (_S, []),
    "hvd_free": ("void", [_P]),
    "hvd_options_create": (None, _pointers(_P)),
    "hvd_options_destroy": ("void", [_P]),
    "hvd_options_set": (None, [_P, _S, _S]),
    "hvd_options_set_int": (None, [_P, _S, _L]),
    "hvd_options_set_duration": (None, [_P, _S, _L]),
    "hvd_options_set_bool": (None, [_P, _S, _I]),
    "hvd_options_get": (None, [_P, _S, POINTER(_S)]),
    "hvd_options_describe": (_S, []),
    "hvd_options_set_log": (None, [_P, _I, LogFn, _P, DestroyFn]),
    "hvd_shutdown": (None, [_P, _L]),
    "hvd_abort": (None, [_P, _S]),
    "hvd_destroy": ("void", [_P]),
    "hvd_get_membership": (None, [_P, POINTER(Membership)]),
    "hvd_rank": (_I, [_P]),
    "hvd_size": (_I, [_P]),
    "hvd_local_rank": (_I, [_P]),
    "hvd_local_size": (_I, [_P]),
    "hvd_cross_rank": (_I, [_P]),
    "hvd_cross_size": (_I, [_P]),
    "hvd_generation": (_U, [_P]),
    "hvd_get_backend": (None, [_P, POINTER(BackendInformation)]),
    "hvd_get_available_backend_count": (None, [_P, POINTER(_N)]),
    "hvd_get_available_backend": (None, [_P, _N, POINTER(BackendReport)]),
    "hvd_get_backend_choice": (None, [_P, _I, _I, _I, POINTER(BackendSelection)]),
    "hvd_process_set_create": (None, [_P, _S, POINTER(_I), _N, _I, POINTER(_P)]),
    "hvd_process_set_destroy": ("void", [_P]),
    "hvd_process_set_get_info": (None, [_P, POINTER(ProcessSetInformation)]),
    "hvd_process_set_get_ranks": (None, [_P, POINTER(_I), POINTER(_N)]),
    "hvd_submit": (None, [_P, POINTER(Request), POINTER(_P)]),
    "hvd_submit_and_wait": (None, [_P, POINTER(Request), _L, POINTER(_P)]),
    "hvd_op_test": (None, [_P, POINTER(_I)]),
    "hvd_op_wait": (None, [_P, _L]),
    "hvd_op_get_fd": (None, [_P, POINTER(_I)]),
    "hvd_op_get_error": (None, [_P]),
    "hvd_op_get_output": (None, [_P, _N, _T]),
    "hvd_op_get_received_splits": (None, [_P, POINTER(_L), POINTER(_N)]),
    "hvd_op_get_last_joined": (None, [_P, POINTER(_I)]),
    "hvd_op_abandon": (None, [_P, _P, DestroyFn]),
    "hvd_op_destroy": ("void", [_P]),
    "hvd_context_create": (None, [_P, POINTER(_P)]),
    "hvd_connect_begin": (None, [_P, _L, POINTER(_P)]),
    "hvd_state_create": (None, [_P, POINTER(_P)]),
    "hvd_state_destroy": ("void", [_P]),
    "hvd_state_add_tensor": (None, [_P, _S, _T]),
    "hvd_state_add_value": (None, [_P, _S, _P, _N]),
    "hvd_state_add_object": (None, [_P, _S, SaveFn, LoadFn, _P, DestroyFn]),
    "hvd_state_lend": (_I, [_P, POINTER(_P), POINTER(_N), _N]),
    "hvd_state_lend_until_end": (_I, [_P, POINTER(_P), POINTER(_N), _N]),
    "hvd_state_add_sampler": (None, [_P, _S, _P]),
    "hvd_state_add_shard": (None, [_P, _S, _T, _L, _L, _I, ReshardFn, _P, DestroyFn]),
    "hvd_state_add_shard_with_parity": (None, [_P, _S, _T, _L, _L, _I, ReshardFn, _P, DestroyFn]),
    "hvd_state_on_lost": (None, [_P, LostFn, _P, DestroyFn]),
    "hvd_shard_range": (None, [_L, _I, _I, POINTER(_L), POINTER(_L)]),
    "hvd_state_remove": (None, [_P, _S]),
    "hvd_state_set_data": (None, [_P, _S, _P]),
    "hvd_state_on_reset": (None, [_P, ResetFn, _P, DestroyFn]),
    "hvd_state_commit": (None, [_P]),
    "hvd_state_commit_begin": (None, [_P]),
    "hvd_state_commit_end": (None, [_P]),
    "hvd_state_save": (None, [_P]),
    "hvd_state_check_host_updates": (None, [_P]),
    "hvd_state_restore": (None, [_P]),
    "hvd_state_sync": (None, [_P]),
    "hvd_state_revision": (_U, [_P]),
    "hvd_state_get_info": (None, [_P, POINTER(StateStatistics)]),
    "hvd_sampler_create": (None, [_P, POINTER(SamplerOptions), POINTER(_P)]),
    "hvd_sampler_destroy": ("void", [_P]),
    "hvd_sampler_next": (None, [_P, POINTER(SamplerBatch), POINTER(_U), _N, POINTER(SamplerBatch)]),
    "hvd_sampler_record": (None, [_P, POINTER(SamplerBatch)]),
    "hvd_sampler_set_epoch": (None, [_P, _U]),
    "hvd_sampler_get_info": (None, [_P, POINTER(SamplerInformation)]),
    "hvd_sampler_save": (None, [_P, _P, _N]),
    "hvd_sampler_load": (None, [_P, _P, _N]),
    "hvd_leave": (None, [_P, _L]),
    "hvd_has_left": (_I, [_P]),
    "hvd_get_leave_fd": (None, [_P, POINTER(_I)]),
    "hvd_run_begin": (None, [_P, _P, POINTER(_P)]),
    "hvd_run_next": (None, [_P, Status, POINTER(_I)]),
    "hvd_run_end": ("void", [_P]),
    "hvd_get_recovery_count": (None, [_P, POINTER(_N)]),
    "hvd_get_recovery": (None, [_P, _N, POINTER(Recovery)]),
    "hvd_register_listener": (None, [_P, c_uint32, ListenerFn, _P, DestroyFn, POINTER(_U)]),
    "hvd_remove_listener": (None, [_P, _U]),
    "hvd_get_event_fd": (None, [_P, POINTER(_I)]),
    "hvd_next_event": (None, [_P, POINTER(Event), POINTER(_I)]),
    "hvd_timeline_start": (None, [_P, _S]),
    "hvd_timeline_stop": (None, [_P]),
    "hvd_driver_create": (None, [_P, POINTER(_P)]),
    "hvd_driver_set_command": (None, [_P, POINTER(_S), POINTER(_S)]),
    "hvd_driver_set_discovery": (None, [_P, DiscoverFn, _P, DestroyFn]),
    "hvd_driver_set_launcher": (None, [_P, LaunchFn, StopFn, _P, DestroyFn]),
    "hvd_driver_worker_exited": (None, [_P, _U, _I]),
    "hvd_driver_set_output": (None, [_P, OutputFn, _P, DestroyFn]),
    "hvd_driver_start": (None, [_P]),
    "hvd_driver_wait": (None, [_P, _L]),
    "hvd_driver_stop": (None, [_P, _S]),
    "hvd_driver_get_status": (None, [_P, POINTER(DriverStatus)]),
    "hvd_driver_describe": (None, [_P, _I, POINTER(_P)]),
    "hvd_driver_drain": (None, [_P, _S, _L, _S]),
    "hvd_driver_undrain": (None, [_P, _S]),
    "hvd_driver_scale": (None, [_P, _I]),
    "hvd_driver_command": (None, [_P, _S, _S, _L, POINTER(_P)]),
    "hvd_driver_destroy": ("void", [_P]),
}

for _name, (_result, _arguments) in _PROTOTYPES.items():
    try:
        _function = getattr(lib, _name)
    except AttributeError:
        raise LibraryError(f"{LIBRARY_PATH} has no function {_name}: it is too old for this package") from None
    _function.restype = Status if _result is None else None if _result == "void" else _result
    _function.argtypes = [*_arguments, _E] if _result is None else _arguments

_ERROR_SIZE = ctypes.sizeof(Error)


def text(value: str, what: str) -> bytes:
    """A string as C takes it: one with a NUL inside would silently be cut there."""
    if not isinstance(value, str):
        raise TypeError(f"{what}: expected a str, and not {type(value).__name__}")
    if "\0" in value:
        raise InvalidError(f"{what}: {value!r} has a NUL character in it")
    return value.encode()


def integer(value: Any, bits: int, what: str) -> int:
    """A whole number as C takes it: ctypes would silently cut one that does not fit."""
    number = index(value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise InvalidError(f"{what}: {number} is no {bits}-bit integer")
    return number


def nanoseconds(seconds: float, what: str = "timeout") -> int:
    """Of a number of seconds, at least 0; more than a year, the library's longest, is one. 0, which would be
    the library's default, is the shortest time."""
    if not seconds >= 0:  # also what is no number
        raise InvalidError(f"{what}: {seconds} s is no time to wait: expected 0 or more")
    return max(1, int(min(seconds, 365 * 86400) * 1_000_000_000))


def failure(status: int, error: Error | None = None) -> HvdError:
    """The exception of a status that is not HVD_OK."""
    if error is None or error.status != status:
        kind = BY_STATUS.get(status, HvdError)
        return kind(lib.hvd_status_name(status).decode(), status=status)
    return failure_of(status, error.rank, error.generation, error.vendor_code, error.backend.decode("utf-8", "replace"),
                      error.message.decode("utf-8", "replace"))


def failure_of(status: int, rank: int, generation: int, vendor_code: int, backend: str, message: str) -> HvdError:
    """The same from the fields of an hvd_error."""
    kind = BY_STATUS.get(status, HvdError)
    name = lib.hvd_status_name(status).decode()
    return kind(f"{name}: {message}", status=status, rank=rank, generation=generation, vendor_code=vendor_code,
                backend=backend)


inside: dict[int, int] = {}
"""How many calls each thread is in. At exit they are waited for: see _handles."""
os.register_at_fork(after_in_child=inside.clear)


def call(function, *arguments) -> int:
    """What the function gives. It may wait."""
    me = get_ident()
    inside[me] = inside.get(me, 0) + 1
    try:
        return function(*arguments)
    finally:
        inside[me] -= 1
        if not inside[me]:
            del inside[me]


def check(function, *arguments) -> None:
    """Calls a function that returns a status and takes `error` last; raises what is not HVD_OK."""
    error = Error(_ERROR_SIZE)
    status = call(function, *arguments, byref(error))
    if status:
        raise failure(status, error)

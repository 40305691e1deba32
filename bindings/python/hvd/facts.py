"""The library's structs as dataclasses: a worker's place, its news, the backends that there are."""

from __future__ import annotations

from ctypes import byref, c_size_t
from dataclasses import dataclass, fields
from enum import IntFlag
from typing import Any

from . import _abi
from . import _constants as c
from ._options import NativeOptions, OptionValue
from .errors import InvalidError
from .tensors import CODES

_lib = _abi.lib


class EventKind(IntFlag):
    HOSTS_UPDATED = c.EVENT_HOSTS_UPDATED  # the driver saw hosts change; agreed on at the next commit
    PEER_LOST = c.EVENT_PEER_LOST          # the generation is lost
    GENERATION = c.EVENT_GENERATION        # a new generation is formed and connected
    JOB_ENDED = c.EVENT_JOB_ENDED
    DRIVER_LOST = c.EVENT_DRIVER_LOST
    RECOVERED = c.EVENT_RECOVERED          # a recovery was recorded
    STALLED = c.EVENT_STALLED              # rank 0: an operation waits for ranks that the message names
    DIVERGED = c.EVENT_DIVERGED            # the rank committed other bytes than most (option divergence_every)
    DRIVER_BACK = c.EVENT_DRIVER_BACK      # there is a driver again
    ALL = c.EVENT_ALL


@dataclass(frozen=True)
class Membership:
    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    generation: int
    membership_epoch: int
    worker: int
    term: int = 0  # of the driver: grows when another one takes over; 0: nobody takes over


@dataclass(frozen=True)
class BackendInfo:
    name: str
    version: str
    path: str
    detail: str


@dataclass(frozen=True)
class BackendReport:
    """A backend that there is: what it supports, and if it is not usable, why."""

    name: str
    version: str
    path: str
    usable: bool
    reason: str
    memories: frozenset[str]
    dtypes: frozenset[str]
    collectives: frozenset[str]
    local: bool
    max_instances: int


@dataclass(frozen=True)
class BackendChoice:
    name: str
    reason: str


@dataclass(frozen=True)
class Recovery:
    """One recovery or planned reset."""

    from_generation: int
    to_generation: int
    cause: int
    from_size: int
    to_size: int
    attempts: int
    revision: int
    began_at_ns: int
    detection_ns: int
    abort_ns: int
    restore_ns: int
    forming_ns: int
    connecting_ns: int
    sync_ns: int
    total_ns: int
    sync_bytes: int
    reason: str
    spares: int


@dataclass(frozen=True)
class Event:
    kind: int
    lost: int
    sequence: int
    generation: int
    membership_epoch: int
    rank: int
    size: int
    message: str


def plain_of(kind: Any, raw: Any) -> Any:
    """A dataclass from the struct with the same fields."""
    values = {field.name: getattr(raw, field.name) for field in fields(kind)}
    return kind(
        **{name: v.decode("utf-8", "replace") if isinstance(v, bytes) else v for name, v in values.items()})


MEMORIES = {"host": c.MEMORY_HOST, "cuda": c.MEMORY_CUDA}
COLLECTIVES = {
    "broadcast": c.COLLECTIVE_BROADCAST, "allreduce": c.COLLECTIVE_ALLREDUCE,
    "allgather": c.COLLECTIVE_ALLGATHER, "barrier": c.COLLECTIVE_BARRIER,
    "reducescatter": c.COLLECTIVE_REDUCESCATTER, "alltoall": c.COLLECTIVE_ALLTOALL, "join": c.COLLECTIVE_JOIN
}


def code_of(names: dict[str, int], name: str, what: str) -> int:
    if name not in names:
        raise InvalidError(f"{what} {name!r}: expected one of {', '.join(names)}")
    return names[name]


def _set_of(names: dict[str, int], bits: int) -> frozenset[str]:
    return frozenset(name for name, code in names.items() if bits >> code & 1)


def backends(**options: OptionValue) -> list[BackendReport]:
    """The backends that there are, in the order in which they are searched; no context is needed."""
    count, found = c_size_t(), []
    with NativeOptions(options) as native:
        _abi.check(_lib.hvd_get_available_backend_count, native, byref(count))
        for index in range(count.value):
            raw = _abi.BackendReport()
            _abi.check(_lib.hvd_get_available_backend, native, index, byref(raw))
            name, version, path, reason = (text.decode("utf-8", "replace")
                                           for text in (raw.name, raw.version, raw.path, raw.reason))
            found.append(
                BackendReport(name, version, path, bool(raw.usable), reason, _set_of(MEMORIES, raw.memories),
                              _set_of(CODES, raw.dtypes), _set_of(COLLECTIVES, raw.collectives),
                              bool(raw.local), raw.max_instances))
    return found

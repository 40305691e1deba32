"""A process group of backend hvd that takes other members (torch's _reconfigure, PyTorch 2.14 and later),
among processes that no driver of a job has started."""

from __future__ import annotations

import itertools
import json
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .. import _default as plain
from ..errors import HvdError, InvalidError
from ..facts import Event, EventKind
from ._group import HvdProcessGroup
from ._letters import Letters
from ._meeting import machine, meet
from ._work import HvdWork

_PATIENCE_S = 5.0  # for rank 0, which serves the job, and is not started anew: option driver_timeout


def _address_of(handle: Any) -> dict[str, Any]:
    try:
        found = json.loads(handle)
        assert isinstance(found["host"], str) and 0 < found["port"] < 65536
        assert isinstance(found["machine"], str)
        return found
    except (ValueError, TypeError, KeyError, AssertionError):
        raise InvalidError(f"_reconfigure: handle {str(handle)[:100]!r}: expected what "
                           "_get_reconfigure_handle of backend hvd gives") from None


class ReconfigurableProcessGroup(HvdProcessGroup):
    """Has no members until _reconfigure, and each time others: one job of libhvd after another, whose ranks
    are the handles in their order.

    A handle is where its process keeps a store of torch's, in which the members of a job that it is rank 0 of
    meet. An operation under way when the members change ends with an error; on whoever stays behind, too.
    """

    supports_reconfigure = True

    def __init__(self, rank: int, size: int, name: str, timeout: timedelta):
        super().__init__(rank, size, name, None, timeout, owns=True)
        self._place = rank, size
        self._store: dist.TCPStore | None = None
        self._handle = ""
        self._used: set[int] = set()
        self._context: Any = None
        self._broken = False

    def getRank(self) -> int:
        return self._place[0]

    def getSize(self) -> int:
        return self._place[1]

    rank, size = getRank, getSize

    def get_error(self) -> Any:
        """ErrorType.COMM_ERROR after abort() and when a loss has been told, until the next _reconfigure. The
        operation that fails may say so a moment before."""
        from torch._C._distributed_c10d import ErrorType

        return ErrorType.COMM_ERROR if self._broken else ErrorType.SUCCESS

    def get_reconfigure_handle(self) -> str:
        if self._store is None:
            self._store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=self._timeout),
                                        wait_for_workers=False)
            host = os.environ.get("HVD_HOSTNAME") or socket.gethostname()
            self._handle = json.dumps({"host": host, "port": self._store.port, "machine": machine()})
        return self._handle

    def reconfigure(self, opts: Any) -> HvdWork:
        """Returns when all have come: the work is complete."""
        # A set leaves the order to the backend: any will do that is the same on all.
        handles = list(opts.handles) if isinstance(opts.handles, (list, tuple)) else sorted(opts.handles)
        if opts.uuid in self._used:
            raise InvalidError(f"_reconfigure: uuid {opts.uuid} was already used: expected another each time")
        if handles.count(self.get_reconfigure_handle()) != 1 or len({*handles}) != len(handles):
            raise InvalidError(
                f"_reconfigure: {len(handles)} handles: expected this process's own once among them, and none "
                "twice")
        addresses = [_address_of(handle) for handle in handles]
        given = getattr(opts, "timeout", None)
        timeout = timedelta(seconds=self._timeout)
        if isinstance(given, timedelta) and given > timedelta(0):
            timeout = given
        self._used.add(opts.uuid)
        self._leave()
        rank, size = handles.index(self._handle), len(handles)
        store: Any = self._store
        if rank:
            here = addresses[0]["machine"] == machine()
            store = dist.TCPStore("127.0.0.1" if here else addresses[0]["host"], addresses[0]["port"], None,
                                  False, timeout, wait_for_workers=False)
        store = dist.PrefixStore(f"hvd/{opts.uuid}", store)
        patience = {} if "HVD_DRIVER_TIMEOUT" in os.environ else {"driver_timeout": _PATIENCE_S}
        meet(store, rank, size, timeout.total_seconds(), **patience)
        # All are in: whoever leaves for other members at once fails nobody's joining.
        store.set(f"in/{rank}", "")
        store.wait([f"in/{other}" for other in range(size)], timeout)
        self._place, self._ranks = (rank, size), list(range(size))
        self._letters = Letters(f"{self._name} {opts.uuid}", rank, self._ranks)
        self._works = itertools.count()  # newcomers have none
        self._broken, self._owns, self._context = False, True, plain.context()
        self._context.register_listener(
            self._hear, EventKind.PEER_LOST | EventKind.DRIVER_LOST | EventKind.JOB_ENDED)
        return HvdWork(None, lambda _: [])

    def _hear(self, event: Event) -> None:
        self._broken = True

    def _options(self, opts: Any = None) -> dict[str, Any]:
        if self._context is None:
            raise InvalidError("this group has no members yet: expected _reconfigure before its first "
                               "operation")
        return super()._options(opts)

    def _leave(self) -> None:
        """The members so far: they are not waited for, as they may be gone."""
        context, self._context = self._context, None
        self._owns = False
        if context is not None and not context.closed:
            try:
                context.abort("the process group takes other members")
            except HvdError:  # it ended by itself meanwhile
                pass

    def abort(self) -> None:
        """The handle stays: others may have it already."""
        store, self._broken = self._store, True
        super().abort()
        self._store = store

    def shutdown(self) -> None:
        try:
            super().shutdown()
        except HvdError:  # the others have left for a group without this one
            pass
        self._store = self._context = None


def can_be_made(about: Any) -> bool:
    """Whether init_process_group asked for such a group, and nobody else says who the members are."""
    return bool(getattr(about, "enable_reconfigure", False)) and not plain.is_initialized(
    ) and not os.environ.get("HVD_DRIVER") and not list(about.global_ranks_in_group or ())

"""torch.distributed's default group in elastic training: of each generation's ranks, by any backend, while
libhvd looks after the job's members and its state."""

from __future__ import annotations

import socket
import threading
import warnings
from datetime import timedelta
from types import TracebackType
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .. import _default as plain
from ..errors import HorovodInternalError, HvdError, InvalidError
from ..facts import Event, EventKind
from ._connections import cut, listeners, published


def can_reconfigure() -> bool:
    """Whether this PyTorch has groups that take other members (2.14 and later): then `Group` keeps one group.
    """
    return all(
        hasattr(c10d, name) for name in ("_reconfigure", "_get_reconfigure_handle", "_supports_reconfigure"))


def _takes_others() -> bool:
    """Whether the default group does. One of several backends (cpu:gloo,cuda:nccl) does not say so, but
    raises."""
    try:
        return bool(c10d._supports_reconfigure())
    except RuntimeError:
        return False


class _Store(dist.Store):
    """A TCPStore of the present generation's rank 0: where a group made once looks for each generation's
    addresses."""

    def __init__(self) -> None:
        super().__init__()
        self._inner: Any = None
        self.ports: set[int] = set()  # of this process, where its groups listen

    def _note(self, value: Any) -> None:
        """Groups of new_group and DeviceMesh come by as well, and the program's own servers do not."""
        self.ports |= published(value.encode() if isinstance(value, str) else bytes(value), listeners())

    def set(self, key: str, value: Any) -> None:
        self._note(value)
        self._inner.set(key, value)

    def append(self, key: str, value: Any) -> None:
        self._note(value)
        self._inner.append(key, value)

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        for value in values:
            self._note(value)
        self._inner.multi_set(keys, values)

    def renew(self, timeout: timedelta) -> None:
        """Everybody calls it in each generation. The old one may have died with its rank 0."""
        self.ports &= listeners()
        rank, here = plain.rank(), plain.local_size() == plain.size()
        address = None
        if rank == 0:
            mine = "127.0.0.1" if here else socket.gethostname()
            self._inner = dist.TCPStore(mine, 0, None, True, timeout, wait_for_workers=False)
            address = [mine, self._inner.port]
        host, port = plain.broadcast_object(address, 0, name="torch group store")
        if rank != 0:
            self._inner = dist.TCPStore(host, port, None, False, timeout, wait_for_workers=False)

    def clone(self) -> _Store:
        return self

    @property
    def timeout(self) -> timedelta:
        return self._inner.timeout


def _forward(name: str) -> Callable[..., Any]:
    def method(self: _Store, *arguments: Any) -> Any:
        return getattr(self._inner, name)(*arguments)

    method.__name__ = name
    return method


for _name in ("get", "add", "check", "wait", "compare_set", "delete_key", "num_keys", "multi_get",
              "has_extended_api", "set_timeout"):
    if hasattr(dist.Store, _name):
        setattr(_Store, _name, _forward(_name))


class Group:
    """Group("hvd"), Group("gloo"), Group("cpu:gloo,cuda:nccl"): the default group of torch.distributed, in a
    `with` within the function that hvd.elastic.run runs:

        group = hvd.torch.elastic.Group("gloo")

        @hvd.elastic.run
        def train(state):
            with group:  # of this generation's ranks; all of them come here
                parallel = torch.nn.parallel.DistributedDataParallel(model)
                ...

    With a backend that can, one group is kept from generation to generation and takes the new members
    (`reconfigures` tells; reconfigure=False: never). Otherwise, and with backend hvd, each generation makes
    its own. When a member is lost the group is aborted at once, and the error that the backend then raises in
    the block comes out of it as HorovodInternalError, so that the run loop goes on; any other error comes out
    as it is. `patience`: seconds that such an error waits to hear of a loss. Groups of new_group and
    DeviceMesh, DDP's wrappers and FSDP's modules are of one generation: make them in the block.
    """

    def __init__(self, backend: str = "hvd", *, timeout: float = 600.0, reconfigure: bool | None = None,
                 patience: float = 15.0, **options: Any):
        self._backend, self._options = backend, options
        self._timeout, self._patience = timedelta(seconds=timeout), patience
        self._reconfigure = reconfigure
        self.reconfigures = False
        self._store: _Store | None = None
        self._news = threading.Condition()
        self._lost = -1  # the newest generation that is known to be lost
        self._generation = 0
        self._listener: tuple[Any, int] | None = None

    # ---- a generation begins ----

    def __enter__(self) -> dist.ProcessGroup:
        context = plain.context()
        if self._listener is None or self._listener[0] is not context:
            self._listener = context, context.register_listener(self._hear, EventKind.PEER_LOST)
        self._generation = context.generation()
        if self._backend == "hvd":
            from .distributed import init_process_group

            init_process_group(timeout=self._timeout, **self._options)
        else:
            self._with_others()
        group = dist.group.WORLD
        assert group is not None
        return group

    def _with_others(self) -> None:
        if self._store is None:
            self._store = _Store()
        self._store.renew(self._timeout)
        try:
            self._make_or_change(self._store)
            if self._lost >= self._generation:  # nobody was there to cut
                cut(self._store.ports)
        except HvdError:
            raise
        except (RuntimeError, ValueError) as problem:  # a member was lost meanwhile, or the backend can't
            self._drop()
            raise self._why(problem) from problem

    def _make_or_change(self, store: _Store) -> None:
        place = {
            "store": store, "rank": plain.rank(), "world_size": plain.size(), "timeout": self._timeout,
            **self._options
        }
        if not self.reconfigures:
            wanted = can_reconfigure() if self._reconfigure is None else self._reconfigure
            if wanted:
                place["enable_reconfigure"] = True
            dist.init_process_group(self._backend, **place)
            self.reconfigures = wanted and _takes_others()
            if wanted and not self.reconfigures:
                dist.destroy_process_group()
                if self._reconfigure:
                    raise InvalidError(
                        f"backend {self._backend} has no groups that take other members: expected "
                        "reconfigure=False")
                del place["enable_reconfigure"]
                place["store"] = dist.PrefixStore("again", store)  # the addresses are others
                dist.init_process_group(self._backend, **place)
        # Whoever keeps a group and whoever makes one (it has just joined) do this together.
        handles = plain.allgather_object(c10d._get_reconfigure_handle() if self.reconfigures else None,
                                         name="torch group handles")
        if not self.reconfigures:
            return
        if None in handles:
            raise InvalidError(
                f"ranks {[rank for rank, handle in enumerate(handles) if handle is None]} have a group that does "
                "not take other members: expected the same PyTorch and the same arguments on all ranks")
        c10d._reconfigure(uuid=self._generation, handles=handles, timeout=self._timeout).wait()
        group = dist.group.WORLD
        c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(plain.size())}

    # ---- and ends ----

    def _hear(self, event: Event) -> None:
        """In a thread of the library's: operations of the group would wait for the lost one until their time
        is over."""
        with self._news:
            self._lost = max(self._lost, event.generation)
            self._news.notify_all()
        if self._backend == "hvd" or event.generation != self._generation or not dist.is_initialized():
            return
        try:
            if self._store is not None:
                cut(self._store.ports)
            if "nccl" in self._backend:
                dist.group.WORLD.abort()
        except Exception as problem:
            warnings.warn(f"torch's group could not be aborted, and ends with its time-out: {problem}",
                          stacklevel=1)

    def _is_lost(self) -> bool:
        with self._news:
            return self._news.wait_for(lambda: self._lost >= self._generation, self._patience)

    def _why(self, problem: BaseException) -> BaseException:
        """HorovodInternalError if the problem's cause is that a member was lost; else the problem."""
        if isinstance(problem, HvdError) or not isinstance(problem,
                                                           (RuntimeError, ValueError)) or not self._is_lost():
            return problem
        return HorovodInternalError(
            f"torch's group of generation {self._generation} has lost a member: {problem}")

    def _drop(self) -> None:
        self.reconfigures = False
        if dist.is_initialized():
            try:
                dist.destroy_process_group()
            except Exception as problem:
                warnings.warn(f"torch's group could not be destroyed: {problem}", stacklevel=1)

    def _keep(self) -> None:
        """The group alone: others are of this generation."""
        for group in [group for group in c10d._world.pg_map if group is not dist.group.WORLD]:
            try:
                dist.destroy_process_group(group)
            except Exception as problem:
                warnings.warn(f"a group of the last generation could not be destroyed: {problem}",
                              stacklevel=1)

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None,
                 trace: TracebackType | None) -> None:
        why = None if problem is None else self._why(problem)
        # After its last step a program may look at the group no more than at another one's.
        if self.reconfigures and isinstance(why, HvdError):
            self._keep()
        else:
            self._drop()
        if why is not problem and why is not None:
            raise why from problem

    def close(self) -> None:
        """Lets go of the group and of the context."""
        self._drop()
        if self._listener is not None and not self._listener[0].closed:
            self._listener[0].remove_listener(self._listener[1])
        self._listener = None

"""The collectives of a context: each has one body, which waits for the operation or gives a handle to it.

Names: every rank calls each operation under the same name. Without one the library numbers them in each
generation, so that ranks must call unnamed ones in the same order.
"""

from __future__ import annotations

from typing import Any, Sequence

from .. import _device
from ..borrowing import copy_of
from ..handle import Finished, Handle
from .objects import Objects
from .operation import (BARRIER, BROADCAST, JOIN, RECEIVE, SEND, Adasum, Average, Max, Min, Product,
                        Reduction, Sum)
from .reductions import Reductions


class Collectives(Reductions, Objects):
    """What Context inherits."""

    # ---- broadcast ----

    def broadcast_async(self, tensor: Any, root_rank: int = 0, name: str | None = None, *,
                        process_set: Any = None, timeout: float | None = None) -> Handle:
        """The root's array, as a new one on every rank."""
        result, loan = copy_of(tensor)
        return self._do(False, BROADCAST, name, None, (loan, ), result, root=root_rank,
                        process_set=process_set, timeout=timeout)

    def broadcast(self, tensor: Any, root_rank: int = 0, name: str | None = None, **options: Any) -> Any:
        result, loan = copy_of(tensor)
        return self._do(True, BROADCAST, name, None, (loan,), result, root=root_rank, **options)

    def broadcast_async_(self, tensor: Any, root_rank: int = 0, name: str | None = None, *,
                         process_set: Any = None, timeout: float | None = None) -> Handle:
        """In place."""
        return self._do(False, BROADCAST, name, None, (tensor, ), tensor, root=root_rank,
                        process_set=process_set, timeout=timeout)

    def broadcast_(self, tensor: Any, root_rank: int = 0, name: str | None = None, **options: Any) -> Any:
        return self._do(True, BROADCAST, name, None, (tensor,), tensor, root=root_rank, **options)

    def _broadcast_variables(self, wait: bool, arrays: list[Any], root_rank: int, name: str | None,
                             **options: Any) -> Any:
        there = [index for index, array in enumerate(arrays) if _device.is_device(array)]
        if not there or len(there) == len(arrays):
            return self._do(wait, BROADCAST, name, None, arrays, arrays, group=True, root=root_rank,
                            **options)
        # A group has one kind of memory. Adam's counts of steps, say, lie in the host's, its moments in the
        # device's.
        here = sorted(set(range(len(arrays))) - set(there))
        handles = [
            self._do(False, BROADCAST, name if name is None else f"{name}.{kind}", None,
                     [arrays[i] for i in indices], None, group=True, root=root_rank, **options)
            for kind, indices in (("host", here), ("device", there))
        ]
        both = Finished(handles, lambda _: arrays)
        return both.wait() if wait else both

    def broadcast_variables_async(self, variables: Sequence[Any], root_rank: int = 0, name: str | None = None,
                                  *, process_set: Any = None, timeout: float | None = None) -> Any:
        """Copies the root's arrays into the other ranks', as one operation; two where some lie on a device
        and some do not."""
        return self._broadcast_variables(False, list(variables), root_rank, name, process_set=process_set,
                                         timeout=timeout)

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int = 0, name: str | None = None,
                            **options: Any) -> list[Any]:
        return self._broadcast_variables(True, list(variables), root_rank, name, **options)

    # ---- between two ranks ----

    def send_async(self, tensor: Any, to_rank: int, name: str = "message", *, process_set: Any = None,
                   timeout: float | None = None) -> Handle:
        """To one rank, which receives it under the same name; each pair and direction has names of its own.

        One message of a name can be under way in each direction. dtype and shape must agree (MismatchError).
        """
        return self._do(False, SEND, name, (tensor, ), None, None, root=to_rank, process_set=process_set,
                        timeout=timeout)

    def send(self, tensor: Any, to_rank: int, name: str = "message", **options: Any) -> None:
        """Returns when the tensor is there."""
        self._do(True, SEND, name, (tensor,), None, None, root=to_rank, **options)

    def receive_async(self, tensor: Any, from_rank: int, name: str = "message", *, process_set: Any = None,
                      timeout: float | None = None) -> Handle:
        """Into `tensor`, which is the result."""
        return self._do(False, RECEIVE, name, None, (tensor, ), tensor, root=from_rank,
                        process_set=process_set, timeout=timeout)

    def receive(self, tensor: Any, from_rank: int, name: str = "message", **options: Any) -> Any:
        return self._do(True, RECEIVE, name, None, (tensor,), tensor, root=from_rank, **options)

    # ---- barrier, join ----

    def barrier_async(self, name: str | None = None, *, process_set: Any = None,
                      timeout: float | None = None) -> Handle:
        return self._do(False, BARRIER, name, None, None, None, process_set=process_set, timeout=timeout)

    def barrier(self, name: str | None = None, *, process_set: Any = None,
                timeout: float | None = None) -> None:
        """Returns when every rank has called it."""
        self._do(True, BARRIER, name, None, None, None, process_set=process_set, timeout=timeout)

    def join_async(self, *, timeout: float | None = None) -> Handle:
        return self._do(False, JOIN, None, None, None, None, lambda handle: handle.last_joined(),
                        timeout=timeout)

    def join(self, device: Any = None, *, timeout: float | None = None) -> int:
        """For ranks that run out of data before the others, who go on without them; gives the last one's
        rank.

        `device` is Horovod's, of the zeros that this rank would give; here they are the library's own.
        """
        if device is not None and not (isinstance(device, (int, str)) or hasattr(device, "index")):
            raise TypeError(f"join: device is a {type(device).__name__}: expected a device's number")
        return self._do(True, JOIN, None, None, None, None, lambda handle: handle.last_joined(),
                        timeout=timeout)


__all__ = ["Adasum", "Average", "Collectives", "Max", "Min", "Product", "Reduction", "Sum"]

"""How an operation is submitted, and what the collectives have in common."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Callable, Sequence

from .. import _constants as c
from .._handles import Native
from .._submit import submit
from ..borrowing import borrow, new_like
from ..errors import InvalidError
from ..handle import Handle
from ..process_set import ProcessSet, global_process_set

BROADCAST, ALLREDUCE, ALLGATHER = c.COLLECTIVE_BROADCAST, c.COLLECTIVE_ALLREDUCE, c.COLLECTIVE_ALLGATHER
BARRIER, REDUCESCATTER, ALLTOALL = c.COLLECTIVE_BARRIER, c.COLLECTIVE_REDUCESCATTER, c.COLLECTIVE_ALLTOALL
JOIN, BROADCAST_OBJECT = c.COLLECTIVE_JOIN, c.COLLECTIVE_BROADCAST_OBJECT
SEND, RECEIVE = c.COLLECTIVE_SEND, c.COLLECTIVE_RECEIVE
REDUCE, GATHER, SCATTER = c.COLLECTIVE_REDUCE, c.COLLECTIVE_GATHER, c.COLLECTIVE_SCATTER
KINDS = {
    BROADCAST: "broadcast", ALLREDUCE: "allreduce", ALLGATHER: "allgather", BARRIER: "barrier",
    REDUCESCATTER: "reducescatter", ALLTOALL: "alltoall", JOIN: "join", BROADCAST_OBJECT: "broadcast_object",
    SEND: "send", RECEIVE: "receive", REDUCE: "reduce", GATHER: "gather", SCATTER: "scatter"
}


class Reduction(IntEnum):
    SUM = c.REDUCTION_SUM
    AVERAGE = c.REDUCTION_AVERAGE
    MIN = c.REDUCTION_MIN
    MAX = c.REDUCTION_MAX
    PRODUCT = c.REDUCTION_PRODUCT
    ADASUM = 100  # made of messages (adasum.py), and none of the library's


Sum, Average, Min = Reduction.SUM, Reduction.AVERAGE, Reduction.MIN
Max, Product, Adasum = Reduction.MAX, Reduction.PRODUCT, Reduction.ADASUM


def members_of(process_set: Any) -> int | None:
    """The native handle of a set; None: all ranks."""
    if process_set is None or process_set is global_process_set:
        return None
    if isinstance(process_set, ProcessSet):
        return process_set._pointer()
    raise InvalidError(f"process_set: expected a ProcessSet, and not {type(process_set).__name__}")


def gathered(kind: str, out: Any, handle: Handle, index: int = 0) -> Any:
    """Rows that came out: in memory of the library's as an array of this kind, or in `out`."""
    result = handle.output(index)
    if out is None:
        return result.like(kind)
    rows = result.shape[0]
    return out if len(out) == rows else out[:rows]


def ends(tensor: Any, out: Any) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """Inputs, outputs (the same list: in place) and result of an operation whose result is like its input."""
    if out is tensor:
        both = (tensor,)
        return both, both, tensor
    if out is not None:
        return (tensor,), (out,), out
    made, source, target = new_like(tensor)
    return (source,), (target,), made


class Operations:
    """One operation of any kind."""

    _handle: Native

    if TYPE_CHECKING:  # what it becomes part of has them

        def rank(self) -> int: ...
        def size(self) -> int: ...

    def _do(self, wait: bool, collective: int, name: str | None, inputs: Sequence[Any] | None,
            outputs: Sequence[Any] | None, result: Any, finish: Callable[[Handle], Any] | None = None, *,
            group: bool = False, root: int = 0, reduction: int = 0, priority: int = 0, prescale: float = 1.0,
            postscale: float = 1.0, splits: Sequence[int] | None = None, process_set: Any = None,
            timeout: float | None = None) -> Any:
        """Its result, which is `result` or, where it is known at the end only, finish(handle); or a handle to
        it."""
        if group and not inputs and not outputs:  # as in hvd.h, a barrier of that name
            collective, group, root, reduction, prescale, postscale = BARRIER, False, 0, 0, 1.0, 1.0
            inputs = outputs = None
        operation = submit(self._handle.pointer, collective, name, inputs, outputs, group, root, reduction,
                           priority, prescale, postscale, splits,
                           None if process_set is None else members_of(process_set), timeout, wait)
        if operation is None:
            return result
        handle = Handle(operation, name or f"{KINDS[collective]} without a name", result, finish)
        return handle.wait() if wait else handle

    def _rows(self, wait: bool, collective: int, tensor: Any, name: str | None, out: Any,
              finish: Callable[[str, Handle], Any] | None = None, **options: Any) -> Any:
        """An operation whose result has rows of its own number."""
        source = borrow(tensor)
        return self._do(wait, collective, name, (source,), None if out is None else (out,), None,
                        (lambda handle: gathered(source.kind, out, handle)) if finish is None else
                        (lambda handle: finish(source.kind, handle)), **options)

    def _seat(self, process_set: Any) -> tuple[int, int]:
        """This rank's, and how many there are, in a set."""
        among = self if process_set is None or process_set is global_process_set else process_set
        return among.rank(), among.size()

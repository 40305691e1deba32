"""The collectives of a context: each asynchronous form builds one hvd_request, the others wait for it.

Names: every rank calls each operation under the same name. Without one, the n-th unnamed operation of its kind in
a generation gets a name with that number, so that ranks must call unnamed ones in the same order.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from contextlib import contextmanager, nullcontext
from ctypes import byref, c_int64, c_size_t, c_void_p
from enum import IntEnum
from typing import Any, Callable, ContextManager, Iterator, Sequence

from . import _abi
from ._lifetime import Owned
from .codec import Codec, CodecLike, codec_of
from .errors import HvdError, InvalidError, UnsupportedError
from .handle import Finished, Handle
from .process_set import ProcessSet, global_process_set
from .tensors import Array, Borrowed, borrow, copy_of, empty_like

_lib = _abi.lib
_REQUEST_SIZE = ctypes.sizeof(_abi.Request)
_TENSOR_SIZE = ctypes.sizeof(_abi.Tensor)
_BROADCAST, _ALLREDUCE, _ALLGATHER, _BARRIER, _REDUCESCATTER, _ALLTOALL, _JOIN = range(1, 8)


class Reduction(IntEnum):
    SUM = 1
    AVERAGE = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


Sum, Average, Min, Max, Product = Reduction


def _factor(value: float, what: str) -> float:
    value = float(value)
    if value == 0:
        raise InvalidError(f"{what} is 0: expected a factor other than 0")
    return value


def _table(loans: Sequence[Borrowed]) -> Any:
    """An array of descriptors for a group; of a single tensor its own."""
    if len(loans) == 1:
        return ctypes.pointer(loans[0].tensor)
    return (_abi.Tensor * len(loans))(*[loan.tensor for loan in loans])


def _members(process_set: Any) -> ContextManager[int | None]:
    if process_set is None or process_set is global_process_set:
        return nullcontext()
    if isinstance(process_set, ProcessSet):
        return process_set._native()
    raise InvalidError(f"process_set: expected a ProcessSet, and not {type(process_set).__name__}")


# What a rank sends in place of an object that its codec refuses, so that all ranks raise the same error.
_REFUSED = b"\0hvd: no object\0\1"


def _packed(translator: Codec, thing: Any, rank: int) -> tuple[bytes, Exception | None]:
    """The object's bytes, or why there are none: for the others, and for this rank."""
    try:
        return translator.dumps(thing), None
    except Exception as problem:
        why = f"rank {rank}: {problem}" if isinstance(problem, InvalidError) else (
            f"rank {rank}: the codec raised {type(problem).__name__}: {problem}")
        return _REFUSED + why.encode("utf-8", "replace")[:4096], problem


def _unpacked(translator: Codec, data: bytes, problem: Exception | None = None) -> Any:
    if data.startswith(_REFUSED):
        raise InvalidError(data[len(_REFUSED):].decode("utf-8", "replace")) from problem
    return translator.loads(data)


class Collectives:
    """What Context inherits: it has _owned, _names and the rest."""

    _owned: Owned
    _names: dict[str, int]
    _names_generation: int
    _names_lock: threading.Lock
    _kept: deque[tuple[int, object]]

    def _reap(self) -> None:
        raise NotImplementedError

    # ---- submitting ----

    @contextmanager
    def _named(self, name: str | None, kind: str, native: int, process_set: object) -> Iterator[bytes]:
        """The operation's name. An unnamed one's number does not count if the block finds that this rank alone is wrong:
        so the ranks stay in step. A mismatch may be known at once, too, and is everybody's."""
        if name is not None:
            yield _abi.text(name, "name")
            return
        group = process_set.name if isinstance(process_set, ProcessSet) else ""
        key = f"{kind}.{group}"
        with self._names_lock:
            generation = _lib.hvd_generation(native)
            if generation != self._names_generation:
                self._names_generation = generation
                self._names.clear()
            number = self._names.get(key, 0) + 1
            try:
                yield f"{kind}.noname.{number}".encode()
            except (InvalidError, UnsupportedError):
                raise
            except HvdError:
                self._names[key] = number
                raise
            self._names[key] = number

    def _submit(self, collective: int, kind: str, name: str | None, inputs: Sequence[Borrowed],
                outputs: Sequence[Borrowed], finish: Callable[[Handle], Any] | None, *, root: int = 0,
                reduction: int = 0, prescale: float = 1.0, postscale: float = 1.0,
                splits: Sequence[int] | None = None, process_set: Any = None, priority: int = 0,
                timeout: float | None = None, group: bool = False) -> Handle:
        if self._kept:
            self._reap()
        request = _abi.Request(_REQUEST_SIZE, collective, _abi.integer(root, 32, "root_rank") if root else 0)
        if inputs:
            request.inputs = _table(inputs)
        if outputs:
            request.outputs = _table(outputs)
        if group:
            request.count = max(len(inputs), len(outputs))
        request.reduction = _abi.integer(reduction, 32, "op")
        if prescale != 1.0:
            request.prescale = _factor(prescale, "prescale_factor")
        if postscale != 1.0:
            request.postscale = _factor(postscale, "postscale_factor")
        if priority:
            request.priority = _abi.integer(priority, 32, "priority")
        if timeout is not None:
            request.timeout_ns = _abi.nanoseconds(timeout)
        if splits is not None:
            rows = [_abi.integer(row, 64, "splits") for row in splits]
            request.splits, request.split_count = (c_int64 * len(rows))(*rows), len(rows)
        pointer = c_void_p()
        with self._owned as native, _members(process_set) as members:
            request.process_set = members
            if collective == _JOIN:
                _abi.check(_lib.hvd_submit, native, byref(request), byref(pointer))
            else:
                with self._named(name, kind, native, process_set) as request.name:
                    _abi.check(_lib.hvd_submit, native, byref(request), byref(pointer))
        label = request.name.decode("utf-8", "replace") if request.name else "join"
        assert pointer.value is not None
        return Handle(self, pointer.value, label, (inputs, outputs), finish)  # type: ignore[arg-type]

    # ---- allreduce ----

    def allreduce_async(self, tensor: Any, name: str | None = None, op: Reduction = Average, *, out: Any = None,
                        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                        process_set: Any = None, priority: int = 0, timeout: float | None = None) -> Handle:
        """Reduction over the ranks, element by element: a new array like `tensor`, or `out` (may be `tensor`)."""
        if out is tensor:
            source = target = borrow(tensor, writable=True)
        else:
            source = borrow(tensor)
            if out is None:
                out, target = empty_like(tensor, source)
            else:
                target = borrow(out, writable=True)
        return self._submit(_ALLREDUCE, "allreduce", name, (source,), (target,), lambda _: out, reduction=op,
                            prescale=prescale_factor, postscale=postscale_factor, process_set=process_set,
                            priority=priority, timeout=timeout)

    def allreduce(self, tensor: Any, name: str | None = None, op: Reduction = Average, **options: Any) -> Any:
        return self.allreduce_async(tensor, name, op, **options).wait()

    def allreduce_async_(self, tensor: Any, name: str | None = None, op: Reduction = Average, **options: Any) -> Handle:
        """In place."""
        return self.allreduce_async(tensor, name, op, out=tensor, **options)

    def allreduce_(self, tensor: Any, name: str | None = None, op: Reduction = Average, **options: Any) -> Any:
        return self.allreduce_async(tensor, name, op, out=tensor, **options).wait()

    def grouped_allreduce_async(self, tensors: Sequence[Any], name: str | None = None, op: Reduction = Average, *,
                                out: Sequence[Any] | None = None, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0, process_set: Any = None, priority: int = 0,
                                timeout: float | None = None) -> Handle:
        """Several tensors as one operation, ready together and complete together: a list of arrays."""
        if out is not None and len(out) != len(tensors):
            raise InvalidError(f"out has {len(out)} entries for {len(tensors)} tensors")
        sources, targets, results = [], [], []
        for index, tensor in enumerate(tensors):
            result = None if out is None else out[index]
            source = borrow(tensor, writable=result is tensor)
            if result is tensor:
                target = source
            elif result is None:
                result, target = empty_like(tensor, source)
            else:
                target = borrow(result, writable=True)
            sources.append(source)
            targets.append(target)
            results.append(result)
        return self._submit(_ALLREDUCE, "grouped_allreduce", name, sources, targets, lambda _: results,
                            reduction=op, prescale=prescale_factor, postscale=postscale_factor,
                            process_set=process_set, priority=priority, timeout=timeout, group=True)

    def grouped_allreduce(self, tensors: Sequence[Any], name: str | None = None, op: Reduction = Average,
                          **options: Any) -> list[Any]:
        return self.grouped_allreduce_async(tensors, name, op, **options).wait()

    def grouped_allreduce_async_(self, tensors: Sequence[Any], name: str | None = None, op: Reduction = Average,
                                 **options: Any) -> Handle:
        """In place."""
        return self.grouped_allreduce_async(tensors, name, op, out=tensors, **options)

    def grouped_allreduce_(self, tensors: Sequence[Any], name: str | None = None, op: Reduction = Average,
                           **options: Any) -> list[Any]:
        return self.grouped_allreduce_async(tensors, name, op, out=tensors, **options).wait()

    # ---- broadcast ----

    def broadcast_async(self, tensor: Any, root_rank: int = 0, name: str | None = None, *, process_set: Any = None,
                        timeout: float | None = None) -> Handle:
        """The root's array, as a new one on every rank."""
        result, loan = copy_of(tensor)
        return self._submit(_BROADCAST, "broadcast", name, (), (loan,), lambda _: result, root=root_rank,
                            process_set=process_set, timeout=timeout)

    def broadcast(self, tensor: Any, root_rank: int = 0, name: str | None = None, **options: Any) -> Any:
        return self.broadcast_async(tensor, root_rank, name, **options).wait()

    def broadcast_async_(self, tensor: Any, root_rank: int = 0, name: str | None = None, *, process_set: Any = None,
                         timeout: float | None = None) -> Handle:
        """In place."""
        return self._submit(_BROADCAST, "broadcast", name, (), (borrow(tensor, writable=True),), lambda _: tensor,
                            root=root_rank, process_set=process_set, timeout=timeout)

    def broadcast_(self, tensor: Any, root_rank: int = 0, name: str | None = None, **options: Any) -> Any:
        return self.broadcast_async_(tensor, root_rank, name, **options).wait()

    def broadcast_variables_async(self, variables: Sequence[Any], root_rank: int = 0, name: str | None = None, *,
                                  process_set: Any = None, timeout: float | None = None) -> Handle:
        """Copies the root's arrays into the other ranks', as one operation."""
        loans = [borrow(variable, writable=True) for variable in variables]
        return self._submit(_BROADCAST, "broadcast_variables", name, (), loans, lambda _: list(variables),
                            root=root_rank, process_set=process_set, timeout=timeout, group=True)

    def broadcast_variables(self, variables: Sequence[Any], root_rank: int = 0, name: str | None = None,
                            **options: Any) -> list[Any]:
        return self.broadcast_variables_async(variables, root_rank, name, **options).wait()

    def broadcast_object(self, thing: Any = None, root_rank: int = 0, name: str | None = None,
                         codec: CodecLike | None = None, *, process_set: Any = None) -> Any:
        """The root's object on every rank; pickle only where every member of the job is trusted."""
        translator = codec_of(codec)
        root_rank = _abi.integer(root_rank, 32, "root_rank")
        mine, problem = None, None
        if self.rank() == root_rank:
            mine, problem = _packed(translator, thing, root_rank)
        if process_set is not None and process_set is not global_process_set:
            data = self._broadcast_bytes(mine, root_rank, name, process_set)
            return thing if mine is not None and problem is None else _unpacked(translator, data, problem)
        with self._owned as native:
            with self._named(name, "broadcast_object", native, None) as label:
                pass  # the call below blocks: its number counts from now on
            data, size = c_void_p(), c_size_t()
            if mine is not None:
                keep = ctypes.create_string_buffer(mine, len(mine)) if mine else None
                data, size = c_void_p(ctypes.addressof(keep) if keep else None), c_size_t(len(mine))
            _abi.check(_lib.hvd_broadcast_object, native, label, byref(data), byref(size), root_rank)
        if mine is not None:
            return thing if problem is None else _unpacked(translator, mine, problem)
        try:
            return _unpacked(translator, ctypes.string_at(data.value, size.value) if data.value else b"")
        finally:
            _lib.hvd_free(data)

    def _broadcast_bytes(self, mine: bytes | None, root_rank: int, name: str | None, process_set: Any) -> bytes:
        """Among a set's members: the length first."""
        length = (ctypes.c_int64 * 1)(len(mine or b""))
        self.broadcast_(length, root_rank, None if name is None else f"{name}.length", process_set=process_set)
        data = bytearray(length[0]) if mine is None else bytearray(mine)
        self.broadcast_(data, root_rank, name, process_set=process_set)
        return bytes(data)

    # ---- allgather ----

    def _gathered(self, loan: Borrowed, out: Any, handle: Handle, index: int = 0) -> Any:
        result = handle.output(index)
        if out is None:
            return result.like(loan.kind)
        rows = result.shape[0]
        return out if len(out) == rows else out[:rows]

    def allgather_async(self, tensor: Any, name: str | None = None, *, out: Any = None, process_set: Any = None,
                        timeout: float | None = None) -> Handle:
        """All ranks' rows, one after the other. First dimensions may differ."""
        source = borrow(tensor)
        targets = () if out is None else (borrow(out, writable=True),)
        return self._submit(_ALLGATHER, "allgather", name, (source,), targets,
                            lambda handle: self._gathered(source, out, handle), process_set=process_set,
                            timeout=timeout)

    def allgather(self, tensor: Any, name: str | None = None, **options: Any) -> Any:
        return self.allgather_async(tensor, name, **options).wait()

    def grouped_allgather_async(self, tensors: Sequence[Any], name: str | None = None, *, process_set: Any = None,
                                timeout: float | None = None) -> Handle:
        sources = [borrow(tensor) for tensor in tensors]

        def finish(handle: Handle) -> list[Any]:
            return [self._gathered(source, None, handle, index) for index, source in enumerate(sources)]

        return self._submit(_ALLGATHER, "grouped_allgather", name, sources, (), finish, process_set=process_set,
                            timeout=timeout, group=True)

    def grouped_allgather(self, tensors: Sequence[Any], name: str | None = None, **options: Any) -> list[Any]:
        return self.grouped_allgather_async(tensors, name, **options).wait()

    def allgather_object(self, thing: Any, name: str | None = None, codec: CodecLike | None = None, *,
                         process_set: Any = None) -> list[Any]:
        """Every rank's object, in rank order."""
        translator = codec_of(codec)
        mine, problem = _packed(translator, thing, self.rank())
        lengths = (ctypes.c_int64 * 1)(len(mine))
        sizes, rows = self.grouped_allgather([lengths, mine], name, process_set=process_set)
        parts, begin, everything = [], 0, bytes(rows)
        for length in sizes:
            parts.append(everything[begin : begin + length])
            begin += length
        for part in parts:  # the first rank's refusal is everybody's error
            if part.startswith(_REFUSED):
                _unpacked(translator, part, problem)
        return [_unpacked(translator, part) for part in parts]

    # ---- reducescatter, alltoall ----

    def reducescatter_async(self, tensor: Any, name: str | None = None, op: Reduction = Average, *, out: Any = None,
                            splits: Sequence[int] | None = None, prescale_factor: float = 1.0,
                            postscale_factor: float = 1.0, process_set: Any = None,
                            timeout: float | None = None) -> Handle:
        """This rank's share of the rows of the reduction; `splits`: rows that each rank gets, instead of evenly."""
        source = borrow(tensor)
        targets = () if out is None else (borrow(out, writable=True),)
        return self._submit(_REDUCESCATTER, "reducescatter", name, (source,), targets,
                            lambda handle: self._gathered(source, out, handle), reduction=op, splits=splits,
                            prescale=prescale_factor, postscale=postscale_factor, process_set=process_set,
                            timeout=timeout)

    def reducescatter(self, tensor: Any, name: str | None = None, op: Reduction = Average, **options: Any) -> Any:
        return self.reducescatter_async(tensor, name, op, **options).wait()

    def grouped_reducescatter_async(self, tensors: Sequence[Any], name: str | None = None, op: Reduction = Average,
                                    **options: Any) -> Finished:
        """Several at once, each an operation of its own: a list of arrays."""
        for tensor in tensors:
            borrow(tensor)  # what is refused is refused before the first has begun
        return Finished([self.reducescatter_async(tensor, None if name is None else f"{name}.{index}", op, **options)
                         for index, tensor in enumerate(tensors)])

    def grouped_reducescatter(self, tensors: Sequence[Any], name: str | None = None, op: Reduction = Average,
                              **options: Any) -> list[Any]:
        return self.grouped_reducescatter_async(tensors, name, op, **options).wait()

    def alltoall_async(self, tensor: Any, splits: Sequence[int] | None = None, name: str | None = None, *,
                       out: Any = None, process_set: Any = None, timeout: float | None = None) -> Handle:
        """splits[i] rows go to rank i. With splits given: (rows received, how many from each rank)."""
        source = borrow(tensor)
        targets = () if out is None else (borrow(out, writable=True),)

        def finish(handle: Handle) -> Any:
            rows = self._gathered(source, out, handle)
            return rows if splits is None else (rows, handle.received_splits())

        return self._submit(_ALLTOALL, "alltoall", name, (source,), targets, finish, splits=splits,
                            process_set=process_set, timeout=timeout)

    def alltoall(self, tensor: Any, splits: Sequence[int] | None = None, name: str | None = None,
                 **options: Any) -> Any:
        return self.alltoall_async(tensor, splits, name, **options).wait()

    # ---- barrier, join ----

    def barrier_async(self, name: str | None = None, *, process_set: Any = None,
                      timeout: float | None = None) -> Handle:
        return self._submit(_BARRIER, "barrier", name, (), (), lambda _: None, process_set=process_set,
                            timeout=timeout)

    def barrier(self, name: str | None = None, **options: Any) -> None:
        """Returns when every rank has called it."""
        self.barrier_async(name, **options).wait()

    def join_async(self, *, timeout: float | None = None) -> Handle:
        return self._submit(_JOIN, "join", None, (), (), lambda handle: handle.last_joined(), timeout=timeout)

    def join(self, device: Any = None, *, timeout: float | None = None) -> int:
        """For ranks that run out of data before the others, who go on without them; gives the last one's rank.

        `device` is Horovod's, of the zeros that this rank would give; here they are the library's own.
        """
        if device is not None and not (isinstance(device, (int, str)) or hasattr(device, "index")):
            raise TypeError(f"join: device is a {type(device).__name__}: expected a device's number")
        return self.join_async(timeout=timeout).wait()


__all__ = ["Array", "Average", "Collectives", "Max", "Min", "Product", "Reduction", "Sum"]

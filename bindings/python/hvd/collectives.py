"""The collectives of a context: each has one body, which waits for the operation or gives a handle to it.

Names: every rank calls each operation under the same name. Without one the library numbers them in each
generation, so that ranks must call unnamed ones in the same order.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any, Callable, Sequence

from . import _abi, _device, adasum
from ._handles import Native
from ._submit import submit
from .codec import Codec, CodecLike, codec_of
from .errors import InvalidError
from .handle import Finished, Handle
from .process_set import ProcessSet, global_process_set
from .tensors import Array, Borrowed, borrow, copy_of, new_like, rows_like

(_BROADCAST, _ALLREDUCE, _ALLGATHER, _BARRIER, _REDUCESCATTER, _ALLTOALL, _JOIN, _BROADCAST_OBJECT, _SEND,
 _RECEIVE, _REDUCE, _GATHER, _SCATTER) = range(1, 14)
_KINDS = ("", "broadcast", "allreduce", "allgather", "barrier", "reducescatter", "alltoall", "join",
          "broadcast_object", "send", "receive", "reduce", "gather", "scatter")


class Reduction(IntEnum):
    SUM = 1
    AVERAGE = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5
    ADASUM = 100  # made of messages (adasum.py), and none of the library's


Sum, Average, Min, Max, Product, Adasum = Reduction


def _members(process_set: Any) -> int | None:
    """The native handle of a set; None: all ranks."""
    if process_set is None or process_set is global_process_set:
        return None
    if isinstance(process_set, ProcessSet):
        return process_set._pointer()
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


def _all_unpacked(translator: Codec, rows: bytes, sizes: Sequence[int],
                  problem: Exception | None) -> list[Any]:
    """One object after the other. The first rank's refusal is everybody's error."""
    parts, begin = [], 0
    for size in sizes:
        parts.append(rows[begin : begin + size])
        begin += size
    for part in parts:
        if part.startswith(_REFUSED):
            _unpacked(translator, part, problem)
    return [_unpacked(translator, part) for part in parts]


def _gathered(kind: str, out: Any, handle: Handle, index: int = 0) -> Any:
    """Rows that came out: in memory of the library's as an array of this kind, or in `out`."""
    result = handle.output(index)
    if out is None:
        return result.like(kind)
    rows = result.shape[0]
    return out if len(out) == rows else out[:rows]


def _ends(tensor: Any, out: Any) -> tuple[Sequence[Any], Sequence[Any], Any]:
    """Inputs, outputs (the same list: in place) and result of an operation whose result is like its input."""
    if out is tensor:
        both = (tensor,)
        return both, both, tensor
    if out is not None:
        return (tensor,), (out,), out
    made, source, target = new_like(tensor)
    return (source,), (target,), made


class Collectives:
    """What Context inherits."""

    _handle: Native

    def _do(self, wait: bool, collective: int, name: str | None, inputs: Sequence[Any] | None,
            outputs: Sequence[Any] | None, result: Any, finish: Callable[[Handle], Any] | None = None, *,
            group: bool = False, root: int = 0, reduction: int = 0, priority: int = 0, prescale: float = 1.0,
            postscale: float = 1.0, splits: Sequence[int] | None = None, process_set: Any = None,
            timeout: float | None = None) -> Any:
        """Its result, which is `result` or, where it is known at the end only, finish(handle); or a handle to
        it."""
        operation = submit(self._handle.pointer, collective, name, inputs, outputs, group, root, reduction,
                           priority, prescale, postscale, splits,
                           None if process_set is None else _members(process_set), timeout, wait)
        if operation is None:
            return result
        handle = Handle(operation, name or f"{_KINDS[collective]} without a name", result, finish)
        return handle.wait() if wait else handle

    # ---- allreduce ----

    def _allreduce(self, wait: bool, tensor: Any, name: str | None, op: Reduction, out: Any,
                   prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Any = None,
                   priority: int = 0, timeout: float | None = None) -> Any:
        if op == Adasum:
            found = adasum.start(self, wait, [tensor], name, None if out is None else [out], prescale_factor,
                                 postscale_factor, process_set, timeout)
            return found[0] if wait else Finished(found, lambda results: results[0])
        if (prescale_factor != 1 or postscale_factor != 1) and _device.is_device(tensor):
            handle = self._scaled([tensor], name, op, None if out is None else [out], prescale_factor,
                                  postscale_factor, False, process_set=process_set, priority=priority,
                                  timeout=timeout)
            return handle.wait() if wait else handle
        inputs, outputs, result = _ends(tensor, out)
        return self._do(wait, _ALLREDUCE, name, inputs, outputs, result, reduction=op, priority=priority,
                        prescale=prescale_factor, postscale=postscale_factor, process_set=process_set,
                        timeout=timeout)

    def _scaled(self, tensors: Sequence[Any], name: str | None, op: Reduction, out: Sequence[Any] | None,
                before: float, after: float, group: bool, **options: Any) -> Finished:
        """allreduce of tensors in device memory, which are scaled there."""
        stream = _device.stream_of(tensors[0])
        results = [tensor.detach().clone() if out is None else tensor for tensor in tensors]
        if out is not None and any(target is not source for target, source in zip(out, tensors)):
            results = [target.copy_(source) for target, source in zip(out, tensors)]
        if before != 1:
            _device.multiply(results, before)
        handle = self._do(False, _ALLREDUCE, name, results, results, results, group=group, reduction=op,
                          **options)

        def finish(_: Any) -> Any:
            if after != 1:
                with _device.on(stream):
                    _device.multiply(results, after)
            return results if group else results[0]

        return Finished(handle, finish)

    def allreduce_async(self, tensor: Any, name: str | None = None, op: Reduction = Average, *,
                        out: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                        process_set: Any = None, priority: int = 0, timeout: float | None = None) -> Handle:
        """Reduction over the ranks, element by element: a new array like `tensor`, or `out` (may be
        `tensor`)."""
        return self._allreduce(False, tensor, name, op, out, prescale_factor, postscale_factor, process_set,
                               priority, timeout)

    def allreduce(self, tensor: Any, name: str | None = None, op: Reduction = Average, *, out: Any = None,
                  **options: Any) -> Any:
        return self._allreduce(True, tensor, name, op, out, **options)

    def allreduce_async_(self, tensor: Any, name: str | None = None, op: Reduction = Average,
                         **options: Any) -> Handle:
        """In place."""
        return self._allreduce(False, tensor, name, op, tensor, **options)

    def allreduce_(self, tensor: Any, name: str | None = None, op: Reduction = Average,
                   **options: Any) -> Any:
        return self._allreduce(True, tensor, name, op, tensor, **options)

    def _grouped_allreduce(self, wait: bool, tensors: Sequence[Any], name: str | None, op: Reduction,
                           out: Sequence[Any] | None, prescale_factor: float = 1.0,
                           postscale_factor: float = 1.0, process_set: Any = None, priority: int = 0,
                           timeout: float | None = None) -> Any:
        inputs = outputs = results = list(tensors)
        if op == Adasum:
            return adasum.start(self, wait, inputs, name, inputs if out is tensors else out, prescale_factor,
                                postscale_factor, process_set, timeout)
        if (prescale_factor != 1 or postscale_factor != 1) and inputs and all(map(_device.is_device, inputs)):
            handle = self._scaled(inputs, name, op, inputs if out is tensors else out, prescale_factor,
                                  postscale_factor, True, process_set=process_set, priority=priority,
                                  timeout=timeout)
            return handle.wait() if wait else handle
        if out is None:
            made = [new_like(tensor) for tensor in inputs]
            results, inputs, outputs = ([entry[i] for entry in made] for i in range(3))
        elif out is not tensors:
            results = outputs = list(out)
            if len(outputs) != len(inputs):
                raise InvalidError(f"out has {len(outputs)} entries for {len(inputs)} tensors")
            if any(target is source for target, source in zip(outputs, inputs)):  # some in place
                loans = [borrow(target, writable=True) for target in outputs]
                inputs = [
                    loan if target is source else source
                    for loan, target, source in zip(loans, outputs, inputs)
                ]
                outputs = loans
        return self._do(wait, _ALLREDUCE, name, inputs, outputs, results, group=True, reduction=op,
                        priority=priority, prescale=prescale_factor, postscale=postscale_factor,
                        process_set=process_set, timeout=timeout)

    def grouped_allreduce_async(self, tensors: Sequence[Any], name: str | None = None,
                                op: Reduction = Average, *, out: Sequence[Any] | None = None,
                                prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                                process_set: Any = None, priority: int = 0,
                                timeout: float | None = None) -> Handle:
        """Several tensors as one operation, ready together and complete together: a list of arrays."""
        return self._grouped_allreduce(False, tensors, name, op, out, prescale_factor, postscale_factor,
                                       process_set, priority, timeout)

    def grouped_allreduce(self, tensors: Sequence[Any], name: str | None = None, op: Reduction = Average, *,
                          out: Sequence[Any] | None = None, **options: Any) -> list[Any]:
        return self._grouped_allreduce(True, tensors, name, op, out, **options)

    def grouped_allreduce_async_(self, tensors: Sequence[Any], name: str | None = None,
                                 op: Reduction = Average, **options: Any) -> Handle:
        """In place."""
        return self._grouped_allreduce(False, tensors, name, op, tensors, **options)

    def grouped_allreduce_(self, tensors: Sequence[Any], name: str | None = None, op: Reduction = Average,
                           **options: Any) -> list[Any]:
        return self._grouped_allreduce(True, tensors, name, op, tensors, **options)

    # ---- broadcast ----

    def broadcast_async(self, tensor: Any, root_rank: int = 0, name: str | None = None, *,
                        process_set: Any = None, timeout: float | None = None) -> Handle:
        """The root's array, as a new one on every rank."""
        result, loan = copy_of(tensor)
        return self._do(False, _BROADCAST, name, None, (loan, ), result, root=root_rank,
                        process_set=process_set, timeout=timeout)

    def broadcast(self, tensor: Any, root_rank: int = 0, name: str | None = None, **options: Any) -> Any:
        result, loan = copy_of(tensor)
        return self._do(True, _BROADCAST, name, None, (loan,), result, root=root_rank, **options)

    def broadcast_async_(self, tensor: Any, root_rank: int = 0, name: str | None = None, *,
                         process_set: Any = None, timeout: float | None = None) -> Handle:
        """In place."""
        return self._do(False, _BROADCAST, name, None, (tensor, ), tensor, root=root_rank,
                        process_set=process_set, timeout=timeout)

    def broadcast_(self, tensor: Any, root_rank: int = 0, name: str | None = None, **options: Any) -> Any:
        return self._do(True, _BROADCAST, name, None, (tensor,), tensor, root=root_rank, **options)

    def _broadcast_variables(self, wait: bool, arrays: list[Any], root_rank: int, name: str | None,
                             **options: Any) -> Any:
        there = [index for index, array in enumerate(arrays) if _device.is_device(array)]
        if not there or len(there) == len(arrays):
            return self._do(wait, _BROADCAST, name, None, arrays, arrays, group=True, root=root_rank,
                            **options)
        # A group has one kind of memory. Adam's counts of steps, say, lie in the host's, its moments in the
        # device's.
        here = sorted(set(range(len(arrays))) - set(there))
        handles = [
            self._do(False, _BROADCAST, name if name is None else f"{name}.{kind}", None,
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

    # ---- objects ----

    def broadcast_object(self, thing: Any = None, root_rank: int = 0, name: str | None = None,
                         codec: CodecLike | None = None, *, process_set: Any = None,
                         timeout: float | None = None) -> Any:
        """The root's object on every rank; pickle only where every member of the job is trusted."""
        translator = codec_of(codec)
        root_rank = _abi.integer(root_rank, 32, "root_rank")
        mine, problem = None, None
        if self.rank() == root_rank:
            mine, problem = _packed(translator, thing, root_rank)
        data = self._do(True, _BROADCAST_OBJECT, name, None if mine is None else (mine, ), None, None,
                        lambda handle: handle.output().tobytes(), root=root_rank, process_set=process_set,
                        timeout=timeout)
        return thing if mine is not None and problem is None else _unpacked(translator, data, problem)

    def allgather_object(self, thing: Any, name: str | None = None, codec: CodecLike | None = None, *,
                         process_set: Any = None, timeout: float | None = None) -> list[Any]:
        """Every rank's object, in rank order."""
        translator = codec_of(codec)
        mine, problem = _packed(translator, thing, self.rank())
        lengths = (ctypes.c_int64 * 1)(len(mine))
        sizes, rows = self.grouped_allgather([lengths, mine], name, process_set=process_set, timeout=timeout)
        return _all_unpacked(translator, bytes(rows), sizes.tolist(), problem)

    def gather_object(self, thing: Any, root_rank: int = 0, name: str | None = None,
                      codec: CodecLike | None = None, *, process_set: Any = None,
                      timeout: float | None = None) -> list[Any] | None:
        """Every rank's object in rank order, on the root alone; None on the others."""
        translator = codec_of(codec)
        root_rank, rank = _abi.integer(root_rank, 32, "root_rank"), self.rank()
        mine, problem = _packed(translator, thing, rank)
        rows, sizes = self._do(
            True, _GATHER, name, (mine, ), None, None, lambda handle:
            (handle.output().tobytes(), handle.received_splits())
            if rank == root_rank else (b"", []), root=root_rank, process_set=process_set, timeout=timeout)
        return _all_unpacked(translator, rows, sizes, problem) if rank == root_rank else None

    # ---- allgather ----

    def _rows(self, wait: bool, collective: int, tensor: Any, name: str | None, out: Any,
              finish: Callable[[str, Handle], Any] | None = None, **options: Any) -> Any:
        """An operation whose result has rows of its own number."""
        source = borrow(tensor)
        return self._do(wait, collective, name, (source,), None if out is None else (out,), None,
                        (lambda handle: _gathered(source.kind, out, handle)) if finish is None else
                        (lambda handle: finish(source.kind, handle)), **options)

    def allgather_async(self, tensor: Any, name: str | None = None, *, out: Any = None,
                        process_set: Any = None, timeout: float | None = None) -> Handle:
        """All ranks' rows, one after the other. First dimensions may differ."""
        if out is None and _device.is_device(tensor):
            return self._device_allgather(False, [tensor], name, False, process_set=process_set,
                                          timeout=timeout)
        return self._rows(False, _ALLGATHER, tensor, name, out, process_set=process_set, timeout=timeout)

    def allgather(self, tensor: Any, name: str | None = None, *, out: Any = None, **options: Any) -> Any:
        if out is None and _device.is_device(tensor):
            return self._device_allgather(True, [tensor], name, False, **options)
        return self._rows(True, _ALLGATHER, tensor, name, out, **options)

    def _device_allgather(self, wait: bool, tensors: Sequence[Any], name: str | None, group: bool,
                          **options: Any) -> Any:
        """Asks for all ranks' numbers of rows, as the library allocates nothing there."""
        sources, stream, width = [borrow(tensor)
                                  for tensor in tensors], _device.stream_of(tensors[0]), 1 + len(tensors)
        for source in sources:
            if not source.shape:
                raise InvalidError("allgather: expected a tensor of at least one dimension, that of the rows")
        mine = _device.words([_device.numbers.take(), *[source.shape[0] for source in sources]])
        asked = self._rows(False, _ALLGATHER, mine, None if name is None else f"{name}.rows", None, **options)

        def begin(found: Any) -> Handle:
            told = found.tolist()
            with _device.on(stream):
                results = [
                    _device.new_rows(source, sum(told[1 + i::width])) for i, source in enumerate(sources)
                ]
                loans = [borrow(result, writable=True) for result in results]
            return self._do(False, _ALLGATHER, name or f"allgather of rows {max(told[::width])}", sources,
                            loans, results if group else results[0], group=group, **options)

        handle = _device.Sized(asked, begin, background=not wait)
        return handle.wait() if wait else handle

    def _grouped_allgather(self, wait: bool, tensors: Sequence[Any], name: str | None, **options: Any) -> Any:
        if tensors and all(map(_device.is_device, tensors)):
            return self._device_allgather(wait, tensors, name, True, **options)
        sources = [borrow(tensor) for tensor in tensors]
        return self._do(
            wait, _ALLGATHER, name, sources, None, [], lambda handle:
            [_gathered(source.kind, None, handle, index) for index, source in enumerate(sources)], group=True,
            **options)

    def grouped_allgather_async(self, tensors: Sequence[Any], name: str | None = None, *,
                                process_set: Any = None, timeout: float | None = None) -> Handle:
        return self._grouped_allgather(False, tensors, name, process_set=process_set, timeout=timeout)

    def grouped_allgather(self, tensors: Sequence[Any], name: str | None = None, **options: Any) -> list[Any]:
        return self._grouped_allgather(True, tensors, name, **options)

    # ---- reducescatter, alltoall ----

    def _reducescatter(self, wait: bool, tensor: Any, name: str | None, op: Reduction, out: Any = None,
                       prescale_factor: float = 1.0, postscale_factor: float = 1.0, **options: Any) -> Any:
        if _device.is_device(tensor):
            return self._device_reducescatter(wait, tensor, name, op, out, prescale_factor, postscale_factor,
                                              **options)
        return self._rows(wait, _REDUCESCATTER, tensor, name, out, reduction=op, prescale=prescale_factor,
                          postscale=postscale_factor, **options)

    def _device_reducescatter(self, wait: bool, tensor: Any, name: str | None, op: Reduction, out: Any,
                              before: float, after: float, splits: Sequence[int] | None = None,
                              process_set: Any = None, timeout: float | None = None) -> Any:
        """Allocates and scales there, which the library does not."""
        source, stream, (rank, size) = borrow(tensor), _device.stream_of(tensor), self._seat(process_set)
        if out is None and source.shape and (splits is None or len(splits) == size):
            rows = _device.even_rows(source.shape[0], rank, size) if splits is None else splits[rank]
            out = _device.new_rows(source, max(rows, 0))
        if before != 1:
            tensor = tensor.detach().clone()
            _device.multiply([tensor], before)
        handle = self._rows(False, _REDUCESCATTER, tensor, name, out, reduction=op, splits=splits,
                            process_set=process_set, timeout=timeout)

        def finish(result: Any) -> Any:
            if after != 1:
                with _device.on(stream):
                    _device.multiply([result], after)
            return result

        scaled = Finished(handle, finish)
        return scaled.wait() if wait else scaled

    def _seat(self, process_set: Any) -> tuple[int, int]:
        """This rank's, and how many there are, in a set."""
        among = self if process_set is None or process_set is global_process_set else process_set
        return among.rank(), among.size()

    def reducescatter_async(self, tensor: Any, name: str | None = None, op: Reduction = Average, *,
                            out: Any = None, splits: Sequence[int] | None = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: Any = None, timeout: float | None = None) -> Handle:
        """This rank's share of the rows of the reduction; `splits`: rows that each rank gets, instead of
        evenly."""
        return self._reducescatter(False, tensor, name, op, out, prescale_factor, postscale_factor,
                                   splits=splits, process_set=process_set, timeout=timeout)

    def reducescatter(self, tensor: Any, name: str | None = None, op: Reduction = Average,
                      **options: Any) -> Any:
        return self._reducescatter(True, tensor, name, op, **options)

    def grouped_reducescatter_async(self, tensors: Sequence[Any], name: str | None = None,
                                    op: Reduction = Average, **options: Any) -> Finished:
        """Several at once, each an operation of its own: a list of arrays."""
        for tensor in tensors:
            borrow(tensor)  # what is refused is refused before the first has begun
        return Finished([
            self.reducescatter_async(tensor, None if name is None else f"{name}.{index}", op, **options)
            for index, tensor in enumerate(tensors)
        ])

    def grouped_reducescatter(self, tensors: Sequence[Any], name: str | None = None, op: Reduction = Average,
                              **options: Any) -> list[Any]:
        return self.grouped_reducescatter_async(tensors, name, op, **options).wait()

    def _alltoall(self, wait: bool, tensor: Any, splits: Sequence[int] | None, name: str | None,
                  out: Any = None, **options: Any) -> Any:
        def finish(kind: str, handle: Handle) -> Any:
            rows = _gathered(kind, out, handle)
            return rows if splits is None else (rows, handle.received_splits())

        if out is None and _device.is_device(tensor):
            return self._device_alltoall(wait, tensor, splits, name, **options)
        return self._rows(wait, _ALLTOALL, tensor, name, out, finish, splits=splits, **options)

    def _device_alltoall(self, wait: bool, tensor: Any, splits: Sequence[int] | None, name: str | None,
                         **options: Any) -> Any:
        """Tells the ranks how many rows they get, as the library allocates nothing there."""
        source, stream, (_, size) = borrow(tensor), _device.stream_of(tensor), self._seat(
            options.get("process_set"))
        rows = source.shape[0] if source.shape else 0
        given = [_device.even_rows(rows, index, size)
                 for index in range(size)] if splits is None else list(splits)
        if len(given) != size or sum(given) != rows or min(given) < 0:
            raise InvalidError(
                f"alltoall: splits {given} of {rows} rows: expected {size} that add up to them")
        number = _device.numbers.take()
        told = _device.words([word for row in given for word in (row, number)])
        asked = self._rows(False, _ALLTOALL, told, None if name is None else f"{name}.rows", None,
                           splits=[2] * size, **options)

        def begin(found: Any) -> Handle:
            flat = found.tolist()
            with _device.on(stream):
                result = _device.new_rows(source, sum(flat[::2]))
                loan = borrow(result, writable=True)
            return self._do(False, _ALLTOALL, name or f"alltoall of rows {max(flat[1::2])}", (source, ),
                            (loan, ), None, lambda handle: result if splits is None else
                            (result, handle.received_splits()), splits=given, **options)

        handle = _device.Sized(asked, begin, background=not wait)
        return handle.wait() if wait else handle

    def alltoall_async(self, tensor: Any, splits: Sequence[int] | None = None, name: str | None = None, *,
                       out: Any = None, process_set: Any = None, timeout: float | None = None) -> Handle:
        """splits[i] rows go to rank i. With splits given: (rows received, how many from each rank)."""
        return self._alltoall(False, tensor, splits, name, out, process_set=process_set, timeout=timeout)

    def alltoall(self, tensor: Any, splits: Sequence[int] | None = None, name: str | None = None,
                 **options: Any) -> Any:
        return self._alltoall(True, tensor, splits, name, **options)

    # ---- between two ranks, to one and from one ----

    def send_async(self, tensor: Any, to_rank: int, name: str = "message", *, process_set: Any = None,
                   timeout: float | None = None) -> Handle:
        """To one rank, which receives it under the same name; each pair and direction has names of its own.

        One message of a name can be under way in each direction. dtype and shape must agree (MismatchError).
        """
        return self._do(False, _SEND, name, (tensor, ), None, None, root=to_rank, process_set=process_set,
                        timeout=timeout)

    def send(self, tensor: Any, to_rank: int, name: str = "message", **options: Any) -> None:
        """Returns when the tensor is there."""
        self._do(True, _SEND, name, (tensor,), None, None, root=to_rank, **options)

    def receive_async(self, tensor: Any, from_rank: int, name: str = "message", *, process_set: Any = None,
                      timeout: float | None = None) -> Handle:
        """Into `tensor`, which is the result."""
        return self._do(False, _RECEIVE, name, None, (tensor, ), tensor, root=from_rank,
                        process_set=process_set, timeout=timeout)

    def receive(self, tensor: Any, from_rank: int, name: str = "message", **options: Any) -> Any:
        return self._do(True, _RECEIVE, name, None, (tensor,), tensor, root=from_rank, **options)

    def _reduce(self, wait: bool, tensor: Any, root_rank: int, name: str | None, op: Reduction,
                out: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                **options: Any) -> Any:
        inputs, outputs, result = _ends(tensor, out) if self.rank() == root_rank else ((tensor,), None, None)
        return self._do(wait, _REDUCE, name, inputs, outputs, result, root=root_rank, reduction=op,
                        prescale=prescale_factor, postscale=postscale_factor, **options)

    def reduce_async(self, tensor: Any, root_rank: int = 0, name: str | None = None, op: Reduction = Average,
                     *, out: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: Any = None, timeout: float | None = None) -> Handle:
        """allreduce whose result the root alone gets, as a new array or in `out` (may be `tensor`); None on
        the others."""
        return self._reduce(False, tensor, root_rank, name, op, out, prescale_factor, postscale_factor,
                            process_set=process_set, timeout=timeout)

    def reduce(self, tensor: Any, root_rank: int = 0, name: str | None = None, op: Reduction = Average,
               **options: Any) -> Any:
        return self._reduce(True, tensor, root_rank, name, op, **options)

    def _gather(self, wait: bool, tensor: Any, root_rank: int, name: str | None, out: Any = None,
                **options: Any) -> Any:
        root = self.rank() == root_rank
        return self._rows(wait, _GATHER, tensor, name, out if root else None,
                          lambda kind, handle: _gathered(kind, out, handle)
                          if root else None, root=root_rank, **options)

    def gather_async(self, tensor: Any, root_rank: int = 0, name: str | None = None, *, out: Any = None,
                     process_set: Any = None, timeout: float | None = None) -> Handle:
        """All ranks' rows, one after the other, on the root alone; None on the others."""
        return self._gather(False, tensor, root_rank, name, out, process_set=process_set, timeout=timeout)

    def gather(self, tensor: Any, root_rank: int = 0, name: str | None = None, **options: Any) -> Any:
        return self._gather(True, tensor, root_rank, name, **options)

    def _scatter(self, wait: bool, tensor: Any, root_rank: int, name: str | None,
                 splits: Sequence[int] | None = None, out: Any = None, **options: Any) -> Any:
        rows = borrow(out if tensor is None else tensor)
        if not rows.shape:
            raise InvalidError("scatter: expected an array of at least one dimension, that of the rows")
        root = self.rank() == root_rank
        return self._do(wait, _SCATTER, name, (rows, ) if root else None,
                        (rows_like(rows) if out is None else out, ), None,
                        lambda handle: _gathered(rows.kind, out, handle), root=root_rank,
                        splits=splits if root else None, **options)

    def scatter_async(self, tensor: Any, root_rank: int = 0, name: str | None = None, *,
                      splits: Sequence[int] | None = None, out: Any = None, process_set: Any = None,
                      timeout: float | None = None) -> Handle:
        """This rank's share of the root's rows: splits[i] rows for rank i, or evenly.

        On the other ranks `tensor` tells dtype and shape of a row, and is not read; it may be None if there
        is `out`."""
        return self._scatter(False, tensor, root_rank, name, splits, out, process_set=process_set,
                             timeout=timeout)

    def scatter(self, tensor: Any, root_rank: int = 0, name: str | None = None, **options: Any) -> Any:
        return self._scatter(True, tensor, root_rank, name, **options)

    # ---- barrier, join ----

    def barrier_async(self, name: str | None = None, *, process_set: Any = None,
                      timeout: float | None = None) -> Handle:
        return self._do(False, _BARRIER, name, None, None, None, process_set=process_set, timeout=timeout)

    def barrier(self, name: str | None = None, *, process_set: Any = None,
                timeout: float | None = None) -> None:
        """Returns when every rank has called it."""
        self._do(True, _BARRIER, name, None, None, None, process_set=process_set, timeout=timeout)

    def join_async(self, *, timeout: float | None = None) -> Handle:
        return self._do(False, _JOIN, None, None, None, None, lambda handle: handle.last_joined(),
                        timeout=timeout)

    def join(self, device: Any = None, *, timeout: float | None = None) -> int:
        """For ranks that run out of data before the others, who go on without them; gives the last one's
        rank.

        `device` is Horovod's, of the zeros that this rank would give; here they are the library's own.
        """
        if device is not None and not (isinstance(device, (int, str)) or hasattr(device, "index")):
            raise TypeError(f"join: device is a {type(device).__name__}: expected a device's number")
        return self._do(True, _JOIN, None, None, None, None, lambda handle: handle.last_joined(),
                        timeout=timeout)


__all__ = [
    "Adasum", "Array", "Average", "Borrowed", "Collectives", "Max", "Min", "Product", "Reduction", "Sum"
]

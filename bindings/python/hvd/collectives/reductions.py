"""Reductions over the ranks: allreduce, reducescatter, reduce."""

from __future__ import annotations

from typing import Any, Sequence

from .. import _device, adasum
from ..borrowing import borrow, new_like
from ..errors import InvalidError
from ..handle import Finished, Handle
from .operation import ALLREDUCE, REDUCE, REDUCESCATTER, Adasum, Average, Operations, Reduction, ends


class Reductions(Operations):

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
        inputs, outputs, result = ends(tensor, out)
        return self._do(wait, ALLREDUCE, name, inputs, outputs, result, reduction=op, priority=priority,
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
        handle = self._do(False, ALLREDUCE, name, results, results, results, group=group, reduction=op,
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
        return self._do(wait, ALLREDUCE, name, inputs, outputs, results, group=True, reduction=op,
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

    # ---- reducescatter ----

    def _reducescatter(self, wait: bool, tensor: Any, name: str | None, op: Reduction, out: Any = None,
                       prescale_factor: float = 1.0, postscale_factor: float = 1.0, **options: Any) -> Any:
        if _device.is_device(tensor):
            return self._device_reducescatter(wait, tensor, name, op, out, prescale_factor, postscale_factor,
                                              **options)
        return self._rows(wait, REDUCESCATTER, tensor, name, out, reduction=op, prescale=prescale_factor,
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
        handle = self._rows(False, REDUCESCATTER, tensor, name, out, reduction=op, splits=splits,
                            process_set=process_set, timeout=timeout)

        def finish(result: Any) -> Any:
            if after != 1:
                with _device.on(stream):
                    _device.multiply([result], after)
            return result

        scaled = Finished(handle, finish)
        return scaled.wait() if wait else scaled

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

    # ---- reduce, to one ----

    def _reduce(self, wait: bool, tensor: Any, root_rank: int, name: str | None, op: Reduction,
                out: Any = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                **options: Any) -> Any:
        inputs, outputs, result = ends(tensor, out) if self.rank() == root_rank else ((tensor,), None, None)
        return self._do(wait, REDUCE, name, inputs, outputs, result, root=root_rank, reduction=op,
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

"""Rows that change hands: allgather, alltoall, and gather and scatter, to one rank and from one."""

from __future__ import annotations

from typing import Any, Sequence

from .. import _device
from ..borrowing import borrow, rows_like
from ..errors import InvalidError
from ..handle import Handle
from .operation import ALLGATHER, ALLTOALL, GATHER, SCATTER, Operations, gathered


class Rows(Operations):

    # ---- allgather ----

    def allgather_async(self, tensor: Any, name: str | None = None, *, out: Any = None,
                        process_set: Any = None, timeout: float | None = None) -> Handle:
        """All ranks' rows, one after the other. First dimensions may differ."""
        if out is None and _device.is_device(tensor):
            return self._device_allgather(False, [tensor], name, False, process_set=process_set,
                                          timeout=timeout)
        return self._rows(False, ALLGATHER, tensor, name, out, process_set=process_set, timeout=timeout)

    def allgather(self, tensor: Any, name: str | None = None, *, out: Any = None, **options: Any) -> Any:
        if out is None and _device.is_device(tensor):
            return self._device_allgather(True, [tensor], name, False, **options)
        return self._rows(True, ALLGATHER, tensor, name, out, **options)

    def _device_allgather(self, wait: bool, tensors: Sequence[Any], name: str | None, group: bool,
                          **options: Any) -> Any:
        """Asks for all ranks' numbers of rows, as the library allocates nothing there."""
        sources, stream, width = [borrow(tensor)
                                  for tensor in tensors], _device.stream_of(tensors[0]), 1 + len(tensors)
        for source in sources:
            if not source.shape:
                raise InvalidError("allgather: expected a tensor of at least one dimension, that of the rows")
        mine = _device.words([_device.numbers.take(), *[source.shape[0] for source in sources]])
        asked = self._rows(False, ALLGATHER, mine, None if name is None else f"{name}.rows", None, **options)

        def begin(found: Any) -> Handle:
            told = found.tolist()
            with _device.on(stream):
                results = [
                    _device.new_rows(source, sum(told[1 + i::width])) for i, source in enumerate(sources)
                ]
                loans = [borrow(result, writable=True) for result in results]
            return self._do(False, ALLGATHER, name or f"allgather of rows {max(told[::width])}", sources,
                            loans, results if group else results[0], group=group, **options)

        handle = _device.Sized(asked, begin, background=not wait)
        return handle.wait() if wait else handle

    def _grouped_allgather(self, wait: bool, tensors: Sequence[Any], name: str | None, **options: Any) -> Any:
        if tensors and all(map(_device.is_device, tensors)):
            return self._device_allgather(wait, tensors, name, True, **options)
        sources = [borrow(tensor) for tensor in tensors]
        return self._do(
            wait, ALLGATHER, name, sources, None, [], lambda handle:
            [gathered(source.kind, None, handle, index) for index, source in enumerate(sources)], group=True,
            **options)

    def grouped_allgather_async(self, tensors: Sequence[Any], name: str | None = None, *,
                                process_set: Any = None, timeout: float | None = None) -> Handle:
        return self._grouped_allgather(False, tensors, name, process_set=process_set, timeout=timeout)

    def grouped_allgather(self, tensors: Sequence[Any], name: str | None = None, **options: Any) -> list[Any]:
        return self._grouped_allgather(True, tensors, name, **options)

    # ---- alltoall ----

    def _alltoall(self, wait: bool, tensor: Any, splits: Sequence[int] | None, name: str | None,
                  out: Any = None, **options: Any) -> Any:
        def finish(kind: str, handle: Handle) -> Any:
            rows = gathered(kind, out, handle)
            return rows if splits is None else (rows, handle.received_splits())

        if out is None and _device.is_device(tensor):
            return self._device_alltoall(wait, tensor, splits, name, **options)
        return self._rows(wait, ALLTOALL, tensor, name, out, finish, splits=splits, **options)

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
        asked = self._rows(False, ALLTOALL, told, None if name is None else f"{name}.rows", None,
                           splits=[2] * size, **options)

        def begin(found: Any) -> Handle:
            flat = found.tolist()
            with _device.on(stream):
                result = _device.new_rows(source, sum(flat[::2]))
                loan = borrow(result, writable=True)
            return self._do(False, ALLTOALL, name or f"alltoall of rows {max(flat[1::2])}", (source, ),
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

    # ---- gather, scatter ----

    def _gather(self, wait: bool, tensor: Any, root_rank: int, name: str | None, out: Any = None,
                **options: Any) -> Any:
        root = self.rank() == root_rank
        return self._rows(wait, GATHER, tensor, name, out if root else None,
                          lambda kind, handle: gathered(kind, out, handle)
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
        return self._do(wait, SCATTER, name, (rows, ) if root else None,
                        (rows_like(rows) if out is None else out, ), None,
                        lambda handle: gathered(rows.kind, out, handle), root=root_rank,
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

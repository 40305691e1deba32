"""The process group of backend hvd: torch.distributed's operations in the library's."""

from __future__ import annotations

import itertools
import weakref
from datetime import timedelta
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist

from .. import _default as plain
from .._device import stream_of
from ..errors import InvalidError, UnsupportedError
from ..process_set import ProcessSet
from ._callbacks import here
from ._letters import Letters, deliver
from ._values import Op, apart, flat, hosted, one, put, room_of, rows_of
from ._work import HvdWork, Several, let_go

_PATHS = 1024  # operations whose callbacks may be under way at once


class HvdProcessGroup(dist.ProcessGroup):
    """The context's ranks, or some of them."""

    def __init__(self, rank: int, size: int, name: str, members: ProcessSet | None, timeout: timedelta,
                 owns: bool = False):
        super().__init__(rank, size)
        self._members = members
        self._name = name
        self._timeout = timeout.total_seconds()
        self._owns = owns  # the context was made for this group, and ends with it
        self._ranks = members.ranks if members is not None else list(range(size))
        self._works = itertools.count()
        self._letters = Letters(name, rank, self._ranks)
        weakref.finalize(self, let_go).atexit = False  # PyTorch 2.5 destroys a group without shutdown()

    def getBackendName(self) -> str:
        return "hvd"

    # What torch asks of a group made of backends for each device; this one is its own.
    @property
    def group_name(self) -> str:
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        """None while torch makes the group: its flight recorder would ask for backends, of which there are
        none."""
        if self not in dist.distributed_c10d._world.pg_map:
            return []
        return [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]

    supports_coalescing = False
    supports_splitting = False

    def _get_backend(self, device: Any) -> HvdProcessGroup:
        return self

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _within(self, opts: Any) -> float:
        """The call's own time-out in seconds, or the group's."""
        given = getattr(opts, "timeout", None)
        return given.total_seconds() if isinstance(given,
                                                   timedelta) and given > timedelta(0) else self._timeout

    def _options(self, opts: Any = None) -> dict[str, Any]:
        """Of one operation: without a name, ranks' n-th ones meet; callbacks' have names."""
        place = here()
        return {
            "process_set": self._members, "timeout": self._within(opts),
            "name": None if place is None else f"torch {place.name_next()}"
        }

    def _path(self) -> str:
        """Of the operation that has been begun, alike on all ranks."""
        place = here()
        return f"{self._name} {next(self._works) % _PATHS}" if place is None else place.last()

    def _work(self, tensor: torch.Tensor, handle: Any, finish: Callable[[Any], Any]) -> HvdWork:
        """Of an operation of all ranks on tensors where this one is."""
        return HvdWork(handle, finish, stream=stream_of(tensor), path=self._path())

    # ---- reductions ----

    def _op(self, opts: Any, tensor: torch.Tensor) -> Op:
        return Op(dist.ReduceOp.SUM if opts is None else opts.reduceOp, tensor)

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> HvdWork:
        tensor = one(tensors, "allreduce")
        if tensor.layout == torch.sparse_coo:
            return self._sparse(tensor, opts)
        op, sent = self._op(opts, tensor), flat(tensor, True)
        if op.fold is not None:
            handle = plain.allgather_async(sent, out=rows_of(sent, sent.numel() * self.size()),
                                           **self._options(opts))
            return self._work(tensor, handle, lambda rows: deliver(tensor, op.folded(rows, self.size())))
        handle = plain.allreduce_async_(sent, op=op.reduction, prescale_factor=op.prescale,
                                        **self._options(opts))
        return self._work(tensor, handle, lambda _: deliver(tensor, sent))

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> HvdWork:
        if len({tensor.dtype for tensor in tensors}) > 1 or not tensors:
            raise InvalidError(
                f"allreduce_coalesced: tensors of {sorted({str(tensor.dtype) for tensor in tensors})}: expected at "
                "least one, all of one dtype")
        op, sent = self._op(opts, tensors[0]), [flat(tensor, True) for tensor in tensors]
        if op.fold is not None:
            return self._all([self.allreduce([tensor], opts) for tensor in tensors], list(tensors))
        handle = plain.grouped_allreduce_async_(sent, op=op.reduction, prescale_factor=op.prescale,
                                                **self._options(opts))

        def finish(_: Any) -> list[torch.Tensor]:
            for tensor, result in zip(tensors, sent):
                put(tensor, result)
            return list(tensors)

        return self._work(tensors[0], handle, finish)

    def _sparse(self, tensor: torch.Tensor, opts: Any) -> HvdWork:
        """All ranks' elements, those of one place added."""
        if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
            raise UnsupportedError(f"backend hvd: {opts.reduceOp} of a sparse tensor: expected SUM")
        mine = tensor.detach().coalesce()
        places, values = mine.indices(), mine.values()
        handle = plain.grouped_allgather_async(
            [places.t().contiguous(), values.contiguous()], **self._options(opts))

        def finish(found: Any) -> list[torch.Tensor]:
            result = torch.sparse_coo_tensor(found[0].t(), found[1].to(values.dtype), mine.size()).coalesce()
            with torch.no_grad():
                tensor.copy_(result)
            return [tensor]

        return self._work(tensor, handle, finish)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> HvdWork:
        tensor, here = one(tensors, "reduce"), self.rank() == opts.rootRank
        op, sent, root = self._op(opts, tensor), hosted(flat(tensor, True)), self._ranks[opts.rootRank]
        if op.fold is not None:
            handle = plain.gather_async(sent, root, **self._options(opts))
            return self._work(
                tensor, handle, lambda rows: deliver(tensor, op.folded(rows, self.size()))
                if here else [tensor])
        handle = plain.reduce_async(sent, root, op=op.reduction, out=sent if here else None,
                                    prescale_factor=op.prescale, **self._options(opts))
        return self._work(tensor, handle, lambda _: deliver(tensor, sent) if here else [tensor])

    def _reduce_scatter(self, output: torch.Tensor, shares: Sequence[torch.Tensor], opts: Any) -> HvdWork:
        op = self._op(opts, output)
        sent = torch.cat([flat(share, True)
                          for share in shares]) if len(shares) > 1 else flat(shares[0], True)
        rows = [flat(share, True).numel()
                for share in shares] if len(shares) > 1 else [sent.numel() // self.size()] * self.size()
        if op.fold is not None:
            handle = plain.alltoall_async(sent, rows, out=rows_of(sent, rows[self.rank()] * self.size()),
                                          **self._options(opts))
            return self._work(output, handle, lambda found: deliver(output, op.folded(found[0], self.size())))
        room = flat(output, True)
        handle = plain.reducescatter_async(apart(sent, room), op=op.reduction, splits=rows, out=room,
                                           prescale_factor=op.prescale, **self._options(opts))
        return self._work(output, handle, lambda _: deliver(output, room))

    def reduce_scatter(self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]],
                       opts: Any = None) -> HvdWork:
        output, shares = one(outputs, "reduce_scatter"), one(inputs, "reduce_scatter")
        if len(shares) != self.size() or shares[self.rank()].numel() != output.numel():
            raise InvalidError(
                f"reduce_scatter: inputs of {[share.numel() for share in shares]} elements: expected {self.size()} "
                f"of them, the one of rank {self.rank()} with the output's {output.numel()}")
        return self._reduce_scatter(output, shares, opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HvdWork:
        if input.numel() != output.numel() * self.size():
            raise InvalidError(
                f"reduce_scatter_tensor: input has {input.numel()} elements: expected {self.size()} times "
                f"the output's {output.numel()}")
        return self._reduce_scatter(output, [input], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                                        opts: Any = None) -> HvdWork:
        return self._all([self._reduce_scatter_base(o, i, opts) for o, i in zip(outputs, inputs)],
                         list(outputs))

    # ---- from one, and everybody's ----

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> HvdWork:
        tensor = one(tensors, "broadcast")
        sent = flat(tensor)
        handle = plain.broadcast_async_(sent, self._ranks[opts.rootRank], **self._options(opts))
        return self._work(tensor, handle, lambda _: deliver(tensor, sent))

    def _spread(self, outputs: Sequence[torch.Tensor], rows: torch.Tensor) -> list[torch.Tensor]:
        """Rows that came, into the outputs in their order."""
        sizes = [flat(output).numel() for output in outputs]
        if rows.numel() != sum(sizes):
            raise InvalidError(f"{rows.numel()} elements came, and the outputs have room for {sum(sizes)}")
        for output, part in zip(outputs, rows.split(sizes)):
            put(output, part)
        return list(outputs)

    def _one_for_each(self, tensors: Sequence[torch.Tensor], what: str) -> Sequence[torch.Tensor]:
        if len(tensors) != self.size():
            raise InvalidError(f"{what}: {len(tensors)} tensors: expected {self.size()}, one for each rank")
        return tensors

    def allgather(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor],
                  opts: Any = None) -> HvdWork:
        rooms, sent = self._one_for_each(one(outputs, "all_gather"),
                                         "all_gather: outputs"), flat(one(inputs, "all_gather"))
        whole = rows_of(sent, sum(flat(room).numel() for room in rooms) if sent.is_cuda else 0)
        handle = plain.allgather_async(sent, out=whole, **self._options(opts))
        return self._work(sent, handle, lambda rows: self._spread(rooms, rows))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HvdWork:
        if output.numel() != input.numel() * self.size() or output.dtype != input.dtype:
            raise InvalidError(
                f"all_gather_into_tensor: output has {output.numel()} elements of {output.dtype}: expected "
                f"{self.size()} times the input's {input.numel()} of {input.dtype}")
        room = flat(output)
        handle = plain.allgather_async(apart(flat(input), room), out=room, **self._options(opts))
        return self._work(output, handle, lambda _: deliver(output, room))

    def allgather_into_tensor_coalesced(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                                        opts: Any = None) -> HvdWork:
        return self._all([self._allgather_base(o, i, opts) for o, i in zip(outputs, inputs)], list(outputs))

    def allgather_coalesced(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor],
                            opts: Any = None) -> HvdWork:
        """outputs[rank][i] of inputs[i]."""
        works = [
            self.allgather([[ranks[i] for ranks in outputs]], [tensor], opts)
            for i, tensor in enumerate(inputs)
        ]
        return self._all(works, [list(ranks) for ranks in outputs])

    def gather(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor],
               opts: Any) -> HvdWork:
        here = self.rank() == opts.rootRank
        rooms = self._one_for_each(one(outputs, "gather"), "gather: outputs") if here else []
        sent = flat(one(inputs, "gather"))
        handle = plain.gather_async(hosted(sent), self._ranks[opts.rootRank], **self._options(opts))
        return self._work(sent, handle, lambda rows: self._spread(rooms, rows) if here else [])

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> HvdWork:
        here = self.rank() == opts.rootRank
        handle = plain.gather_async(hosted(flat(input)), self._ranks[opts.rootRank], **self._options(opts))
        return self._work(input, handle, lambda rows: self._spread([output], rows) if here else [])

    def scatter(self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]],
                opts: Any) -> HvdWork:
        output = one(outputs, "scatter")
        room, sent, splits = room_of(output), None, None
        if self.rank() == opts.rootRank:
            shares = [flat(share) for share in self._one_for_each(one(inputs, "scatter"), "scatter: inputs")]
            sent, splits = apart(hosted(torch.cat(shares)), room), [share.numel() for share in shares]
        handle = plain.scatter_async(sent, self._ranks[opts.rootRank], splits=splits, out=room,
                                     **self._options(opts))
        return self._work(output, handle, lambda _: deliver(output, room))

    # ---- alltoall ----

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                 opts: Any = None) -> HvdWork:
        self._one_for_each(outputs, "all_to_all: outputs")
        sent = [flat(tensor) for tensor in self._one_for_each(inputs, "all_to_all: inputs")]
        rows = torch.cat(sent)
        whole = rows_of(rows, sum(flat(output).numel() for output in outputs) if rows.is_cuda else 0)
        handle = plain.alltoall_async(rows, [tensor.numel() for tensor in sent], out=whole,
                                      **self._options(opts))
        return self._work(rows, handle, lambda found: self._spread(outputs, found[0]))

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_splits: Sequence[int],
                      input_splits: Sequence[int], opts: Any = None) -> HvdWork:
        sent, room = flat(input), flat(output)
        rows = self._splits(list(input_splits), input, "input")
        expected = self._splits(list(output_splits), output, "output")
        width = sent.numel() // input.shape[0] if input.dim() and input.shape[0] else 1
        handle = plain.alltoall_async(apart(sent, room), [row * width for row in rows], out=room,
                                      **self._options(opts))

        def finish(found: Any) -> list[torch.Tensor]:
            wide = room.numel() // output.shape[0] if output.dim() and output.shape[0] else 1
            if list(found[1]) != [row * wide for row in expected]:
                raise InvalidError(
                    f"all_to_all_single: output_split_sizes {expected}: elements that came are {list(found[1])}"
                )
            return deliver(output, room)

        return self._work(output, handle, finish)

    def _splits(self, given: list[int], tensor: torch.Tensor, what: str) -> list[int]:
        rows = tensor.shape[0] if tensor.dim() else tensor.numel()
        if not given and rows % self.size() == 0:
            return [rows // self.size()] * self.size()
        if len(given) != self.size() or sum(given) != rows or min(given) < 0:
            raise InvalidError(
                f"all_to_all_single: {what} of {rows} rows, {what}_split_sizes {given or None}: expected "
                f"{self.size()} that add up to its rows" +
                ("" if given else ", as they are no multiple of that"))
        return given

    # ---- the rest ----

    def barrier(self, opts: Any = None) -> HvdWork:
        return HvdWork(plain.barrier_async(**self._options(opts)), lambda _: [], path=self._path())

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        self._letters.monitored_barrier(self._timeout if timeout is None else timeout.total_seconds(),
                                        wait_all_ranks)

    def _all(self, works: Sequence[HvdWork], result: list[Any]) -> HvdWork:
        return HvdWork(Several(works), lambda _: result, stream=works[0]._stream if works else None,
                       path=self._path())

    def send(self, tensors: Sequence[torch.Tensor], rank: int, tag: int = 0) -> HvdWork:
        tensor = one(tensors, "send")
        return HvdWork(self._letters.send(hosted(flat(tensor)), rank, tag, self._timeout),
                       lambda _: list(tensors))

    def recv(self, tensors: Sequence[torch.Tensor], rank: int, tag: int = 0) -> HvdWork:
        tensor = one(tensors, "recv")
        handle = self._letters.receive(room_of(tensor), rank, tag, self._timeout)
        return HvdWork(handle, lambda values: deliver(tensor, values), lambda: rank, stream_of(tensor))

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> HvdWork:
        tensor = one(tensors, "recv")
        asked = self._letters.from_anybody(room_of(tensor), tag, self._timeout)
        return HvdWork(asked, lambda values: deliver(tensor, values), lambda: asked.source, stream_of(tensor))

    def shutdown(self) -> None:
        if self._members is not None and plain.is_initialized():
            plain.remove_process_set(self._members)
            self._members = None
        if self._owns and plain.is_initialized():
            self._owns = False
            plain.shutdown(min(self._timeout, 60.0), keep_place=False)
        let_go()

    def abort(self) -> None:
        """Whatever is under way ends with an error, where the context is this group's own."""
        if self._owns and plain.is_initialized():
            self._owns = False
            plain.abort("the process group was aborted")
        self.shutdown()

    # PyTorch 2.14's names for the forms with one tensor.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    gather_into_tensor = gather_single
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

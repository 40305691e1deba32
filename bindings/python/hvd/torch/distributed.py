"""A backend of torch.distributed: `import hvd.torch.distributed` and dist.init_process_group("hvd", ...).

DDP, FSDP, DeviceMesh, new_group and object collectives then run over libhvd, on tensors in host memory. The group's ranks are those
of the context of hvd.init in its present generation: after a reset destroy the group and make it anew. docs/torch-distributed.md
is the manual.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from datetime import timedelta
from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist

from .. import _default as plain
from ..collectives import Average, Max, Min, Product, Reduction, Sum
from ..errors import InvalidError, UnsupportedError
from ..handle import Finished, Handle
from ..process_set import ProcessSet

_LETTERS = 4096  # of a tag and direction between two ranks at once
_REDUCTIONS = ((dist.ReduceOp.SUM, Sum), (dist.ReduceOp.AVG, Average), (dist.ReduceOp.PRODUCT, Product),
               (dist.ReduceOp.MIN, Min), (dist.ReduceOp.MAX, Max))


def _reduction(op: Any) -> Reduction:
    for theirs, ours in _REDUCTIONS:
        if op == theirs:
            return ours
    raise UnsupportedError(f"backend hvd has no reduction {op}: expected SUM, AVG, PRODUCT, MIN or MAX")


class _Completer:
    """Sets the futures of operations under way, from a thread that is there as long as there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: deque[HvdWork] = deque()
        self._running = False

    def add(self, work: HvdWork) -> None:
        with self._lock:
            self._works.append(work)
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="hvd-futures", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._works:
                    self._running = False
                    return
                work = self._works.popleft()
            work._settle()


class HvdWork(dist._Work):
    """An operation under way: wait(), is_completed(), get_future()."""

    def __init__(self, handle: Handle | Finished | None, finish: Callable[[Any], Any]):
        super().__init__()
        self._handle = handle
        self._finish = finish
        self._lock = threading.Lock()
        self._future: torch.futures.Future = torch.futures.Future()
        self._problem: BaseException | None = None
        self._settled = False

    def _settle(self, timeout: float | None = None) -> None:
        """Waits, finishes and sets the future, once."""
        if not self._settled and self._handle is not None:
            try:
                self._handle.wait(timeout)
            except TimeoutError as problem:
                if not self._handle.done():
                    raise problem
            except Exception:
                pass  # taken below, by whoever comes first
        with self._lock:
            if self._settled:
                return
            try:
                result = self._finish(None if self._handle is None else self._handle.wait())
            except Exception as problem:
                self._problem = problem
                self._settled = True
                self._future.set_exception(problem)
            else:
                self._settled = True
                self._future.set_result(result)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._settle(timeout.total_seconds() or None)
        if self._problem is not None:
            raise self._problem
        return True

    def is_completed(self) -> bool:
        return self._settled or self._handle is None or self._handle.done()

    def is_success(self) -> bool:
        return self._settled and self._problem is None

    def exception(self) -> BaseException | None:
        return self._problem

    def get_future(self) -> torch.futures.Future:
        return self._future

    def result(self) -> Any:
        self.wait()
        return self._future.value()


def _one(tensors: Sequence[Any], what: str) -> Any:
    if len(tensors) != 1:
        raise InvalidError(f"{what}: {len(tensors)} tensors: expected 1, as each rank has one device")
    return tensors[0]


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1)


def _fill(target: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        target.copy_(values.reshape(target.shape))


class HvdProcessGroup(dist.ProcessGroup):
    """The context's ranks, or some of them."""

    def __init__(self, rank: int, size: int, name: str, members: ProcessSet | None, timeout: timedelta):
        super().__init__(rank, size)
        self._members = members
        self._name = name
        self._timeout = timeout.total_seconds()
        self._completer = _Completer()
        self._lock = threading.Lock()
        self._letters: Counter[tuple[bool, int, int]] = Counter()  # so far: whether sent, the other's rank, tag
        self._ranks = members.ranks if members is not None else list(range(size))

    def getBackendName(self) -> str:
        return "hvd"

    # What torch asks of a group made of backends for each device; this one is its own.
    @property
    def group_name(self) -> str:
        return self._name

    supports_coalescing = False

    def _get_backend(self, device: Any) -> HvdProcessGroup:
        return self

    def _start(self, handle: Handle | Finished | None, finish: Callable[[Any], Any]) -> HvdWork:
        work = HvdWork(handle, finish)
        if handle is None:
            work._settle()
        else:
            self._completer.add(work)
        return work

    @property
    def _options(self) -> dict[str, Any]:
        return {"process_set": self._members, "timeout": self._timeout}

    # ---- reductions ----

    def _allreduce(self, tensors: Sequence[torch.Tensor], op: Any) -> HvdWork:
        sent = [_flat(tensor) for tensor in tensors]
        handle = plain.grouped_allreduce_async_(sent, None, _reduction(op), **self._options) if len(sent) != 1 else (
            plain.allreduce_async_(sent[0], None, _reduction(op), **self._options))

        def finish(_: Any) -> list[torch.Tensor]:
            for tensor, result in zip(tensors, sent):
                if result.data_ptr() != tensor.data_ptr():
                    _fill(tensor, result)
            return list(tensors)

        return self._start(handle, finish)

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> HvdWork:
        return self._allreduce([_one(tensors, "allreduce")], dist.ReduceOp.SUM if opts is None else opts.reduceOp)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> HvdWork:
        return self._allreduce(tensors, dist.ReduceOp.SUM if opts is None else opts.reduceOp)

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> HvdWork:
        tensor = _one(tensors, "reduce")
        handle = plain.reduce_async(_flat(tensor), self._ranks[opts.rootRank], None, _reduction(opts.reduceOp),
                                    **self._options)

        def finish(result: torch.Tensor | None) -> list[torch.Tensor]:
            if result is not None:
                _fill(tensor, result)
            return [tensor]

        return self._start(handle, finish)

    def _reduce_scatter(self, output: torch.Tensor, shares: Sequence[torch.Tensor], op: Any) -> HvdWork:
        sent = torch.cat([_flat(share) for share in shares]) if len(shares) > 1 else _flat(shares[0])
        rows = [share.numel() for share in shares] if len(shares) > 1 else [sent.numel() // self.size()] * self.size()
        handle = plain.reducescatter_async(sent, None, _reduction(op), splits=rows, **self._options)

        def finish(result: torch.Tensor) -> list[torch.Tensor]:
            _fill(output, result)
            return [output]

        return self._start(handle, finish)

    def reduce_scatter(self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any) -> HvdWork:
        return self._reduce_scatter(_one(outputs, "reduce_scatter"), _one(inputs, "reduce_scatter"), opts.reduceOp)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any) -> HvdWork:
        if input.numel() != output.numel() * self.size():
            raise InvalidError(f"reduce_scatter_tensor: input has {input.numel()} elements: expected {self.size()} times "
                               f"the output's {output.numel()}")
        return self._reduce_scatter(output, [input], opts.reduceOp)

    def reduce_scatter_tensor_coalesced(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                                        opts: Any) -> HvdWork:
        return self._all([self._reduce_scatter_base(o, i, opts) for o, i in zip(outputs, inputs)], list(outputs))

    # ---- from one, and everybody's ----

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any) -> HvdWork:
        tensor = _one(tensors, "broadcast")
        sent = _flat(tensor)
        handle = plain.broadcast_async_(sent, self._ranks[opts.rootRank], None, **self._options)

        def finish(_: Any) -> list[torch.Tensor]:
            if sent.data_ptr() != tensor.data_ptr():
                _fill(tensor, sent)
            return [tensor]

        return self._start(handle, finish)

    def _gather(self, outputs: Sequence[torch.Tensor] | None, tensor: torch.Tensor) -> HvdWork:
        handle = plain.allgather_async(_flat(tensor), None, **self._options)

        def finish(result: torch.Tensor) -> list[torch.Tensor]:
            at = 0
            for output in outputs or ():
                _fill(output, result[at : at + output.numel()])
                at += output.numel()
            return list(outputs or ())

        return self._start(handle, finish)

    def allgather(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None) -> HvdWork:
        return self._gather(_one(outputs, "all_gather"), _one(inputs, "all_gather"))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HvdWork:
        if output.numel() != input.numel() * self.size():
            raise InvalidError(f"all_gather_into_tensor: output has {output.numel()} elements: expected {self.size()} times "
                               f"the input's {input.numel()}")
        return self._gather([output], input)

    def allgather_into_tensor_coalesced(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
                                        opts: Any = None) -> HvdWork:
        return self._all([self._allgather_base(o, i) for o, i in zip(outputs, inputs)], list(outputs))

    def allgather_coalesced(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor],
                            opts: Any = None) -> HvdWork:
        works = [self._gather([ranks[i] for ranks in outputs], tensor) for i, tensor in enumerate(inputs)]
        return self._all(works, [list(ranks) for ranks in outputs])

    def gather(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any) -> HvdWork:
        """By alltoall: all rows go to the root."""
        tensor, here = _one(inputs, "gather"), self.rank() == opts.rootRank
        splits = [0] * self.size()
        splits[opts.rootRank] = tensor.numel()
        return self._exchange(_flat(tensor), splits, _one(outputs, "gather") if here else [])

    def scatter(self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any) -> HvdWork:
        output = _one(outputs, "scatter")
        if self.rank() == opts.rootRank:
            shares = [_flat(share) for share in _one(inputs, "scatter")]
            return self._exchange(torch.cat(shares), [share.numel() for share in shares], [output])
        return self._exchange(output.new_empty(0), [0] * self.size(), [output])

    # ---- alltoall ----

    def _exchange(self, sent: torch.Tensor, splits: Sequence[int], outputs: Sequence[torch.Tensor]) -> HvdWork:
        handle = plain.alltoall_async(sent, list(splits), None, **self._options)

        def finish(result: Any) -> list[torch.Tensor]:
            rows, at = result[0], 0
            wanted = sum(output.numel() for output in outputs)
            if rows.numel() != wanted:
                raise InvalidError(f"{rows.numel()} elements came, and the outputs have room for {wanted}")
            for output in outputs:
                _fill(output, rows[at : at + output.numel()])
                at += output.numel()
            return list(outputs)

        return self._start(handle, finish)

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> HvdWork:
        sent = [_flat(tensor) for tensor in inputs]
        return self._exchange(torch.cat(sent), [tensor.numel() for tensor in sent], outputs)

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_splits: Sequence[int],
                      input_splits: Sequence[int], opts: Any = None) -> HvdWork:
        width = input.numel() // input.shape[0] if input.dim() and input.shape[0] else 1
        rows = list(input_splits) or [input.shape[0] // self.size()] * self.size()
        return self._exchange(_flat(input), [row * width for row in rows], [output])

    # ---- the rest ----

    def barrier(self, opts: Any = None) -> HvdWork:
        return self._start(plain.barrier_async(None, **self._options), lambda _: [])

    def _all(self, works: Sequence[HvdWork], result: list[Any]) -> HvdWork:
        def finish(_: Any) -> list[Any]:
            for work in works:
                work.wait()
            return result

        last = works[-1]._handle if works else None
        return self._start(last, finish)

    def _letter(self, sends: bool, rank: int, tag: int) -> tuple[int, str]:
        """The other's rank in the generation, and a name: the n-th of a tag meets the n-th, as torch's own backends do it."""
        if not 0 <= rank < self.size() or rank == self.rank():
            raise InvalidError(f"{'send to' if sends else 'recv from'} rank {rank}: expected another rank of 0 to {self.size() - 1}")
        with self._lock:
            number = self._letters[sends, rank, tag]
            self._letters[sends, rank, tag] += 1
        return self._ranks[rank], f"torch {self._name} {tag} {number % _LETTERS}"

    def send(self, tensors: Sequence[torch.Tensor], rank: int, tag: int = 0) -> HvdWork:
        tensor = _flat(_one(tensors, "send"))
        peer, name = self._letter(True, rank, tag)
        return self._start(plain.send_async(tensor, peer, name, timeout=self._timeout), lambda _: list(tensors))

    def recv(self, tensors: Sequence[torch.Tensor], rank: int, tag: int = 0) -> HvdWork:
        tensor = _one(tensors, "recv")
        room = _flat(tensor)
        peer, name = self._letter(False, rank, tag)

        def finish(_: Any) -> list[torch.Tensor]:
            if room.data_ptr() != tensor.data_ptr():
                _fill(tensor, room)
            return [tensor]

        return self._start(plain.receive_async(room, peer, name, timeout=self._timeout), finish)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> HvdWork:
        raise UnsupportedError("backend hvd: recv needs to know from whom (src=)")

    def shutdown(self) -> None:
        if self._members is not None and plain.is_initialized():
            plain.remove_process_set(self._members)
            self._members = None

    abort = shutdown

    # PyTorch 2.14's names for the forms with one tensor.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base


def _create(about: Any, options: Any = None) -> HvdProcessGroup:
    """What torch.distributed calls for the default group and for each of new_group's."""
    if not plain.is_initialized():
        raise InvalidError("hvd.init() has not been called: the ranks of backend hvd are its context's")
    members = None
    ranks = list(about.global_ranks_in_group or ())
    if ranks and ranks != list(range(plain.size())):
        if ranks != sorted(ranks):
            raise InvalidError(f"new_group({ranks}): expected the ranks ascending")
        members = plain.add_process_set(ProcessSet(ranks, name=f"torch {about.group_id}", rule="end"))
    elif not ranks and (about.group_rank, about.group_size) != (plain.rank(), plain.size()):
        raise InvalidError(f"rank {about.group_rank} of {about.group_size}: expected hvd.rank() and hvd.size(), "
                           f"{plain.rank()} of {plain.size()}")
    return HvdProcessGroup(about.group_rank, about.group_size, str(about.group_id), members, about.timeout)


def init_process_group(**options: Any) -> None:
    """dist.init_process_group with backend "hvd" and the context's ranks; hvd.init() if it has not been called.

    The store is this process's own: nothing of the group goes through it.
    """
    plain.init()
    dist.init_process_group("hvd", store=dist.HashStore(), rank=plain.rank(), world_size=plain.size(), **options)


if not hasattr(dist.Backend, "HVD"):
    dist.Backend.register_backend("hvd", _create, extended_api=True, devices=["cpu"])

__all__ = ["HvdProcessGroup", "HvdWork", "init_process_group"]

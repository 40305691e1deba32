"""DistributedOptimizer: gradients are reduced while the backward pass goes on, and awaited by step()."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator, Sequence

import torch

from .. import _default as plain
from .. import _device
from ..collectives import Adasum, Average, Reduction
from ..errors import InvalidError
from ..process_set import global_process_set
from .compression import Compression
from .ops import sparse_allreduce_async, sparse_tensor


class _Unit:
    """Parameters whose gradients are reduced in one operation, when all of them are there."""

    __slots__ = ("parameters", "name", "waiting", "handles")

    def __init__(self, parameters: Sequence[torch.Tensor], name: str):
        self.parameters = list(parameters)
        self.name = name
        self.waiting = len(self.parameters)
        self.handles: list[tuple[Any, list[torch.Tensor], list[Any], list[Any], Any]] = []


class _Gradients:
    """The reductions under way of one optimizer."""

    def __init__(self, param_groups: list[dict], named: Iterable[tuple[str, torch.Tensor]] | None,
                 compression: Any, passes: int, op: Reduction, predivide: float,
                 groups: int | Sequence[Sequence[torch.Tensor]] | None, sparse_as_dense: bool,
                 process_set: Any):
        self.compression, self.op, self.process_set = compression, op, process_set
        self.passes = _passes(passes)
        if predivide != 1.0 and op != Average:
            raise InvalidError("gradient_predivide_factor goes with op=Average only")
        self.predivide = predivide
        self.sparse_as_dense = sparse_as_dense
        self.parameters = [p for group in param_groups for p in group["params"] if p.requires_grad]
        self.names = self._names(param_groups, named)
        self.units = self._units(groups)
        self.unit_of = {p: unit for unit in self.units for p in unit.parameters}
        self.sparse: dict[torch.Tensor,
                          int] = {}  # sparse dimensions of those that have had a sparse gradient
        self.left: dict[torch.Tensor, int] = {}
        connected = plain.context()._connected  # else it is in no generation yet
        self.generation = plain.generation() if connected else 0
        self.included = not connected or process_set is None or process_set.included()
        self.synchronized = False
        self.dropped: list[Any] = []  # reductions under way whose results are not used
        self.forget()
        self.roots: list[Any] = [
        ]  # nodes of the graph: they go if nobody keeps them, and the hooks with them
        for p in self.parameters:
            self._hook(p)

    @staticmethod
    def _names(groups: list[dict],
               named: Iterable[tuple[str, torch.Tensor]] | None) -> dict[torch.Tensor, str]:
        if named is None:
            return {p: f"allreduce.noname.{i}.{j}" for i, group in enumerate(groups)
                    for j, p in enumerate(group["params"])}
        pairs = list(named)
        if any(not isinstance(pair, tuple) or not isinstance(pair[0], str) for pair in pairs):
            raise InvalidError("named_parameters: expected model.named_parameters()")
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidError(f"named_parameters: {twice[0]!r} is there more than once")
        known = {p: name for name, p in pairs}
        unnamed = [p for group in groups for p in group["params"] if p not in known]
        if unnamed:
            raise InvalidError(
                f"named_parameters: {len(unnamed)} of the optimizer's parameters have no name in it")
        return known

    def _units(self, groups: int | Sequence[Sequence[torch.Tensor]] | None) -> list[_Unit]:
        """`groups` of them, or these, and the rest one by one; without groups small ones together."""
        if groups is None:
            chosen: list[list[torch.Tensor]] = _buckets(self.parameters)
        elif isinstance(groups, int):
            if groups < 1:
                raise InvalidError(f"groups is {groups}: expected a number of groups, at least 1")
            share, more = divmod(len(self.parameters), groups)
            ends = [i * share + min(i, more) for i in range(groups + 1)]
            chosen = [self.parameters[begin:end] for begin, end in zip(ends, ends[1:])]
        else:
            chosen = [list(group) for group in groups]
            flat = [p for group in chosen for p in group]
            if any(not isinstance(p, torch.Tensor) for p in flat):
                raise InvalidError("groups: expected lists of parameters")
            if len(set(flat)) != len(flat):
                raise InvalidError("groups: a parameter is in more than one place")
            mine = set(self.parameters)
            chosen = [[p for p in group if p in mine] for group in chosen]
        units = [_Unit(group, self.names[group[0]]) for group in chosen if group]
        grouped = {p for unit in units for p in unit.parameters}
        return units + [_Unit([p], self.names[p]) for p in self.parameters if p not in grouped]

    def _hook(self, p: torch.Tensor) -> None:
        if hasattr(p, "register_post_accumulate_grad_hook"):
            p.register_post_accumulate_grad_hook(self._ready)
            return
        root = p.expand_as(p).grad_fn.next_functions[0][0]  # accumulates into p.grad
        root.register_hook(lambda *_, p=p: self._ready(p))
        self.roots.append(root)

    @property
    def pending(self) -> bool:
        return any(unit.handles for unit in self.units)

    def forget(self) -> None:
        """What an earlier generation, or a step that failed, left behind."""
        self.dropped += [handle for unit in self.units for handle, *_ in unit.handles if not handle.done()]
        for unit in self.units:
            unit.handles = []
            unit.waiting = len(unit.parameters)
        self.left = {p: self.passes for p in self.parameters}
        self.synchronized = False

    def _enter_generation(self) -> None:
        generation = plain.generation()
        if self.generation != generation:
            self.generation = generation
            self.included = self.process_set is None or self.process_set.included()
            self.forget()
            self.dropped.clear()  # which ended with theirs

    def _end_dropped(self) -> None:
        """Their names are not free before."""
        while self.dropped:
            try:
                self.dropped.pop().wait()
            except Exception:  # of gradients that nobody uses
                pass

    def _ready(self, p: torch.Tensor) -> None:
        self._enter_generation()
        if not self.included:  # it trains alone
            return
        if self.left[p] <= 0:
            raise InvalidError(
                f"gradient of {self.names[p]!r}: more than backward_passes_per_step={self.passes} "
                "backward passes without step()")
        self.left[p] -= 1
        if self.left[p] == 0:
            unit = self.unit_of[p]
            unit.waiting -= 1
            if unit.waiting == 0:
                self._reduce(unit)

    def _reduce(self, unit: _Unit) -> None:
        """Who had no gradient takes part with zeros: others may have one."""
        self._end_dropped()
        dense, packed, contexts = [], [], []
        for p in unit.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p) if p not in self.sparse else _no_entries(p, self.sparse[p])
            gradient = p.grad
            if gradient.is_sparse:
                self.sparse[p] = gradient.sparse_dim()
                if not self.sparse_as_dense:
                    sparse = sparse_allreduce_async(gradient, f"allreduce.{self.names[p]}", self.op,
                                                    process_set=self.process_set)
                    unit.handles.append((sparse, [p], [None], [None], _device.stream_of(gradient)))
                    continue
                gradient = gradient.to_dense()
            tensor, context = self.compression.compress(gradient.detach().contiguous())
            dense.append(p)
            packed.append(tensor)
            contexts.append(context)
        if not dense:
            return
        options: dict[str, Any] = dict(process_set=self.process_set)
        if self.predivide != 1.0:
            options.update(prescale_factor=1.0 / self.predivide, postscale_factor=self.predivide)
        if len(dense) == 1:
            handle = plain.allreduce_async_(packed[0], f"allreduce.{self.names[dense[0]]}", self.op,
                                            **options)
        else:
            handle = plain.grouped_allreduce_async_(packed, f"grouped_allreduce.{unit.name}", self.op,
                                                    **options)
        unit.handles.append((handle, dense, packed, contexts, _device.stream_of(packed[0])))

    def synchronize(self) -> None:
        self._enter_generation()
        if not self.included:
            return
        try:
            for unit in self.units:
                if not unit.handles:
                    self._reduce(unit)
            for unit in self.units:
                for handle, parameters, packed, contexts, stream in unit.handles:
                    result = handle.wait()
                    _device.follow(stream)  # backward had one of its own
                    for p, tensor, context in zip(parameters, packed, contexts):
                        self._take(p,
                                   result if tensor is None else self.compression.decompress(tensor, context))
        finally:
            self.forget()

    @staticmethod
    def _take(p: torch.Tensor, result: torch.Tensor) -> None:
        assert p.grad is not None
        if p.grad.is_sparse:
            p.grad = result if result.is_sparse else result.to_sparse()
        elif result.data_ptr() != p.grad.data_ptr():
            p.grad.copy_(result)


_SMALL, _BUCKET = 1 << 18, 1 << 20  # bytes


def _buckets(parameters: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Parameters with small gradients in host memory, by dtype and from the last one on, as backward makes
    them.

    An operation for each would take longer than their data. Large ones are not in it: each is under way as
    soon as it is there. All ranks come to the same buckets, since they have the same parameters.
    """
    buckets: list[list[torch.Tensor]] = []
    filling: dict[torch.dtype, tuple[list[torch.Tensor], int]] = {}
    for p in reversed(parameters):
        if p.device.type != "cpu" or isinstance(p, torch.nn.parameter.UninitializedTensorMixin):
            continue
        size = p.numel() * p.element_size()
        if size > _SMALL:
            continue
        bucket, filled = filling.get(p.dtype, ([], _BUCKET))
        if filled + size > _BUCKET:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.insert(0, p)
        filling[p.dtype] = bucket, filled + size
    return buckets


def _no_entries(p: torch.Tensor, dimensions: int) -> torch.Tensor:
    return sparse_tensor(torch.empty((dimensions, 0), dtype=torch.int64, device=p.device),
                         torch.empty((0, *p.shape[dimensions:]), dtype=p.dtype, device=p.device), p.shape)


def _passes(passes: int) -> int:
    if not isinstance(passes, int) or passes < 1:
        raise InvalidError(f"backward_passes_per_step is {passes}: expected at least 1")
    return passes


class _Attributes:
    """Horovod's users read these of either kind."""

    _hvd: Any

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return self._hvd.names

    @property
    def backward_passes_per_step(self) -> int:
        return self._hvd.passes

    @property
    def process_set(self) -> Any:
        return self._hvd.process_set or global_process_set


class _Distributed(_Attributes):
    """What a DistributedOptimizer has beyond the class of the optimizer that it was made of."""

    _hvd: _Gradients
    _hvd_synchronize = True

    def synchronize(self) -> None:
        """Waits for the gradients, to clip them before step(); step() then goes `with
        optimizer.skip_synchronize()`."""
        self._hvd.synchronize()
        self._hvd.synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        self._hvd_synchronize = False
        try:
            yield
        finally:
            self._hvd_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._hvd.passes = _passes(passes)
        self._hvd.forget()

    @property
    def op(self) -> Reduction:
        return self._hvd.op

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the optimizer's own. Gradients that are being reduced are dropped."""
        super().load_state_dict(state_dict)  # type: ignore[misc]
        self._hvd.forget()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if self._hvd_synchronize:
            if self._hvd.synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): it reduces again the gradients that are reduced already",
                    stacklevel=2)
            self._hvd.synchronize()
        self._hvd.synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        if self._hvd.pending and self._hvd.generation == plain.generation():
            raise InvalidError("zero_grad() was called after backward() and before step() or synchronize(): "
                               "reductions of these gradients are under way")
        super().zero_grad(*arguments, **options)  # type: ignore[misc]


class _DistributedDeltas(_Attributes):
    """What a DistributedOptimizer with op=Adasum has: steps are taken alone, and what they changed is
    combined.

    So Adasum sees the direction that the optimizer's own rule gives, with its momentum, as in Horovod.
    """

    _hvd: Any

    def synchronize(self) -> None:
        """Nothing is under way before step()."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise InvalidError(
            "skip_synchronize() is not for op=Adasum: gradients stay this rank's own, and step() combines "
            "what it changed")
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._hvd.passes = _passes(passes)  # gradients add up until step() is called

    @property
    def op(self) -> Reduction:
        return Adasum

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        process_set = self._hvd.process_set
        if process_set is not None and not process_set.included():
            return super().step(closure)  # type: ignore[misc]
        parameters, compression = self._hvd.parameters, self._hvd.compression
        before = [p.detach().clone() for p in parameters]
        loss = super().step(closure)  # type: ignore[misc]
        with torch.no_grad():
            pairs = [compression.compress(p.detach() - start) for p, start in zip(parameters, before)]
            deltas = [packed.contiguous() for packed, _ in pairs]
            if deltas:
                plain.grouped_allreduce_(deltas, f"adasum.{self._hvd.names[parameters[0]]}", Adasum,
                                         process_set=process_set)
            for p, start, delta, (_, context) in zip(parameters, before, deltas, pairs):
                p.copy_(start + compression.decompress(delta, context))
        return loss


class _Deltas:
    """Of which parameters, under which names."""

    def __init__(self, param_groups: list[dict], named: Any, compression: Any, passes: int,
                 process_set: Any):
        self.parameters = [p for group in param_groups for p in group["params"] if p.requires_grad]
        self.names = _Gradients._names(param_groups, named)
        self.compression, self.passes, self.process_set = compression, _passes(passes), process_set


def DistributedOptimizer(optimizer: torch.optim.Optimizer,
                         named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
                         compression: Any = Compression.none, backward_passes_per_step: int = 1,
                         op: Reduction = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                         groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
                         sparse_as_dense: bool = False, process_set: Any = None) -> Any:
    """An optimizer of the same class and with the same state, whose step() uses the gradients of all ranks.

    A gradient's reduction begins as soon as its last backward pass has made it. Gradients of at most 256 KiB
    in host memory go together, up to 1 MiB, when all of them are there; `groups` says otherwise. With
    backward_passes_per_step = n, gradients add up over n backward passes and are then reduced once: divide
    the loss by n for their mean.

    `groups`: lists of parameters whose gradients are reduced as one operation, or a number of such groups
    (which num_groups is, too). Sparse gradients are gathered, or with sparse_as_dense reduced as dense ones.
    A rank that is not in `process_set` trains alone.

    With op=Adasum (hvd/adasum.py) step() is this rank's own, and what it changed is combined; gradients are
    not reduced, and groups, num_groups and sparse_as_dense have no effect.
    """
    if num_groups < 0:
        raise InvalidError(f"num_groups is {num_groups}: expected 0 or more")
    if groups is None and num_groups:
        groups = num_groups
    base: Any = type(optimizer)
    if isinstance(optimizer, (_Distributed, _DistributedDeltas)):
        raise InvalidError("the optimizer is a DistributedOptimizer already")
    if op == Adasum:
        if gradient_predivide_factor != 1.0:
            raise InvalidError("gradient_predivide_factor goes with op=Average only")
    kind: Any = type(base.__name__, (_DistributedDeltas if op == Adasum else _Distributed, base),
                     {"__module__": base.__module__, "__doc__": base.__doc__})
    wrapped = kind.__new__(kind)
    wrapped.__dict__ = optimizer.__dict__  # one state: whoever holds the original, a scheduler say, sees it too
    wrapped.__dict__.pop("step", None)  # a scheduler's wrapper of the original's step, which would hide ours
    if op == Adasum:
        wrapped._hvd = _Deltas(optimizer.param_groups, named_parameters, compression,
                               backward_passes_per_step, process_set)
        return wrapped
    wrapped._hvd = _Gradients(optimizer.param_groups, named_parameters, compression, backward_passes_per_step,
                              op, gradient_predivide_factor, groups, sparse_as_dense, process_set)
    return wrapped

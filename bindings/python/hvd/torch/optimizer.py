"""DistributedOptimizer: gradients are reduced while the backward pass goes on, and awaited by step()."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import Any, Callable, Iterable, Iterator

import torch

from .. import _default as plain
from ..collectives import Average, Reduction
from ..errors import InvalidError
from ..handle import Handle


class NoneCompressor:
    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor


class FP16Compressor:
    """Gradients travel in half precision."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if not tensor.dtype.is_floating_point:
            return tensor, None
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor if context is None else tensor.to(context)


class Compression:
    none = NoneCompressor
    fp16 = FP16Compressor


class _Gradients:
    """The reductions under way of one optimizer."""

    def __init__(self, groups: list[dict], named: Iterable[tuple[str, torch.Tensor]] | None, compression: Any,
                 passes: int, op: Reduction, predivide: float, process_set: Any):
        if passes < 1:
            raise InvalidError(f"backward_passes_per_step is {passes}: expected at least 1")
        if predivide != 1.0 and op != Average:
            raise InvalidError("gradient_predivide_factor goes with op=Average only")
        self.compression, self.passes, self.op, self.process_set = compression, passes, op, process_set
        self.predivide = predivide
        self.parameters = [p for group in groups for p in group["params"] if p.requires_grad]
        self.names = self._names(groups, named)
        self.left = {p: passes for p in self.parameters}
        self.pending: dict[torch.Tensor, tuple[Handle, Any, Any]] = {}
        self.generation = plain.generation()
        self.synchronized = False
        self.roots: list[Any] = []  # nodes of the graph: they go if nobody keeps them, and the hooks with them
        for p in self.parameters:
            self._hook(p)

    @staticmethod
    def _names(groups: list[dict], named: Iterable[tuple[str, torch.Tensor]] | None) -> dict[torch.Tensor, str]:
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
            raise InvalidError(f"named_parameters: {len(unnamed)} of the optimizer's parameters have no name in it")
        return known

    def _hook(self, p: torch.Tensor) -> None:
        if hasattr(p, "register_post_accumulate_grad_hook"):
            p.register_post_accumulate_grad_hook(self._ready)
            return
        root = p.expand_as(p).grad_fn.next_functions[0][0]  # accumulates into p.grad
        root.register_hook(lambda *_, p=p: self._ready(p))
        self.roots.append(root)

    def forget(self) -> None:
        """What an earlier generation, or a step that failed, left behind."""
        self.pending.clear()
        self.left = {p: self.passes for p in self.parameters}
        self.synchronized = False

    def _ready(self, p: torch.Tensor) -> None:
        if self.generation != plain.generation():
            self.generation = plain.generation()
            self.forget()
        if p in self.pending or self.left[p] <= 0:
            raise InvalidError(f"gradient of {self.names[p]!r}: more than backward_passes_per_step={self.passes} "
                               "backward passes without step()")
        self.left[p] -= 1
        if self.left[p] == 0:
            self.pending[p] = self._reduce(p)

    def _reduce(self, p: torch.Tensor) -> tuple[Handle, Any, Any]:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dense = p.grad.to_dense() if p.grad.is_sparse else p.grad.detach().contiguous()
        packed, context = self.compression.compress(dense)
        factors: dict[str, Any] = {}
        if self.predivide != 1.0:
            factors = dict(prescale_factor=1.0 / self.predivide, postscale_factor=self.predivide)
        handle = plain.allreduce_async_(packed, f"allreduce.{self.names[p]}", self.op, process_set=self.process_set,
                                        **factors)
        return handle, packed, context

    def synchronize(self) -> None:
        try:
            for p in self.parameters:  # who had no gradient takes part with zeros: others may have one
                if p not in self.pending:
                    self.pending[p] = self._reduce(p)
            for p, (handle, packed, context) in self.pending.items():
                handle.wait()
                result = self.compression.decompress(packed, context)
                if p.grad.is_sparse:
                    p.grad = result
                elif result.data_ptr() != p.grad.data_ptr():
                    p.grad.copy_(result)
        finally:
            self.forget()


class _Distributed:
    """What a DistributedOptimizer has beyond the class of the optimizer that it was made of."""

    _hvd: _Gradients
    _hvd_synchronize = True

    def synchronize(self) -> None:
        """Waits for the gradients, to clip them before step(); step() then goes `with optimizer.skip_synchronize()`."""
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
        if passes < 1:
            raise InvalidError(f"backward_passes_per_step is {passes}: expected at least 1")
        self._hvd.passes = passes
        self._hvd.forget()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if self._hvd_synchronize:
            if self._hvd.synchronized:
                warnings.warn("step() waits for gradients that synchronize() has waited for already: call it "
                              "within `with optimizer.skip_synchronize()`", stacklevel=2)
            self._hvd.synchronize()
        self._hvd.synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        if self._hvd.pending and self._hvd.generation == plain.generation():
            raise InvalidError("zero_grad() was called after backward() and before step() or synchronize(): "
                               "reductions of these gradients are under way")
        super().zero_grad(*arguments, **options)  # type: ignore[misc]


def DistributedOptimizer(optimizer: torch.optim.Optimizer,
                         named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
                         compression: Any = Compression.none, backward_passes_per_step: int = 1,
                         op: Reduction = Average, gradient_predivide_factor: float = 1.0,
                         process_set: Any = None) -> Any:
    """An optimizer of the same class and with the same state, whose step() uses the gradients of all ranks.

    A gradient's reduction begins as soon as its last backward pass has made it; the library fuses what is ready
    together. With backward_passes_per_step = n, gradients add up over n backward passes and are then reduced once:
    divide the loss by n for their mean.
    """
    base: Any = type(optimizer)
    if isinstance(optimizer, _Distributed):
        raise InvalidError("the optimizer is a DistributedOptimizer already")
    kind: Any = type(base.__name__, (_Distributed, base), {"__module__": base.__module__, "__doc__": base.__doc__})
    wrapped = kind.__new__(kind)
    wrapped.__dict__ = optimizer.__dict__  # one state: whoever holds the original, a scheduler say, sees it too
    wrapped.__dict__.pop("step", None)  # a scheduler's wrapper of the original's step, which would hide ours
    wrapped._hvd = _Gradients(optimizer.param_groups, named_parameters, compression, backward_passes_per_step, op,
                              gradient_predivide_factor, process_set)
    return wrapped

"""Gradients of all ranks for an optimizer of Keras, by the backend that Keras runs on."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from .. import _default as plain
from .._grouping import Grouping, refuse_adasum
from ..collectives import Average, Min, Reduction
from ..errors import InvalidError
from ..process_set import ProcessSet, global_process_set
from . import _keras
from .compression import NoneCompressor, compression_of


class _Plain:
    """What PyTorch and JAX have in common: the gradients of a group as one operation."""

    def __init__(self, prefix: str, *, compression: Any = NoneCompressor, sparse_as_dense: bool = False,
                 op: Reduction = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                 groups: Any = None, process_set: Any = global_process_set,
                 scale_local_gradients: bool = True):
        self.op = Reduction(op)
        if gradient_predivide_factor != 1.0 and self.op != Average:
            raise InvalidError(
                f"gradient_predivide_factor {gradient_predivide_factor} goes with op=Average only")
        self.prefix, self.process_set, self.predivide = prefix, process_set, gradient_predivide_factor
        self.compression = compression
        self.scale_local_gradients = scale_local_gradients
        self.local: set[Any] = set()
        self.grouping = Grouping(num_groups, groups, id)

    def register_local(self, variables: Sequence[Any]) -> None:
        self.local |= {id(variable) for variable in variables}

    def _reduce(self, gradients: list[Any], name: str, op: Reduction, **scale: Any) -> list[Any]:
        raise NotImplementedError

    def excluded(self) -> bool:
        """Whether this worker is outside the process set, and so trains by itself."""
        return isinstance(self.process_set, ProcessSet) and not self.process_set.included()

    def on_all(self, condition: Any) -> Any:
        """Whether it holds on every rank, as a tensor of the backend's."""
        if self.excluded():
            return condition
        (least, ) = self._reduce([_keras.cast(condition, "int32")], f"{self.prefix}.on_all", Min)
        return _keras.cast(least, "bool")

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        results = list(gradients)
        if self.excluded():
            return results
        shared = [i for i, g in enumerate(gradients) if g is not None and id(variables[i]) not in self.local]
        if self.scale_local_gradients and self.op == Average:
            members = self.process_set.size() if isinstance(self.process_set, ProcessSet) else plain.size()
            for i, gradient in enumerate(gradients):
                if gradient is not None and id(variables[i]) in self.local:
                    results[i] = gradient / members
        scale = {}
        if self.predivide != 1.0:
            scale = {"prescale_factor": 1.0 / self.predivide, "postscale_factor": self.predivide}
        for part in self.grouping.parts(shared, [id(variable) for variable in variables]):
            name = f"{self.prefix}.{variables[part[0]].path}.{len(part)}"
            packed = [self.compression.compress(gradients[i]) for i in part]
            reduced = self._reduce([tensor for tensor, _ in packed], name, self.op, **scale)
            for i, tensor, (_, context) in zip(part, reduced, packed):
                results[i] = self.compression.decompress(tensor, context)
        return results


class _OnTorch(_Plain):
    def _reduce(self, gradients: list[Any], name: str, op: Reduction, **scale: Any) -> list[Any]:
        from .. import torch as of_torch

        return of_torch.grouped_allreduce([g.detach().contiguous() for g in gradients], name=name, op=op,
                                          process_set=self.process_set, **scale)


class _OnJax(_Plain):
    def _reduce(self, gradients: list[Any], name: str, op: Reduction, **scale: Any) -> list[Any]:
        from .. import jax as of_jax

        if self.process_set is not global_process_set:
            raise InvalidError("process_set: where Keras runs on JAX, expected all ranks")
        return list(of_jax.allreduce(gradients, name=name, op=op, **scale))


class _PythonAggregation:
    """Adds gradients up over several calls, for a backend that runs each step as Python."""

    def __init__(self, passes: int, average: bool):
        self.passes, self.average = passes, average
        self._sums: list[Any] | None = None
        self._count = 0

    def __call__(self, gradients: Sequence[Any], apply: Callable[[list[Any]], Any]) -> None:
        if self.passes == 1:
            apply(list(gradients))
            return
        sums = self._sums
        self._sums = [
            g if s is None else s if g is None else s + g
            for s, g in zip(sums or [None] * len(gradients), gradients)
        ]
        self._count += 1
        if self._count == self.passes:
            whole, self._sums, self._count = self._sums, None, 0
            apply([s / self.passes if self.average and s is not None else s for s in whole])


def reduction_and_aggregation(prefix: str, passes: int, average: bool, device_dense: Any, device_sparse: Any,
                              **options: Any) -> tuple[Any, Any]:
    if passes < 1:
        raise InvalidError(f"backward_passes_per_step is {passes}: expected at least 1")
    refuse_adasum(options.get("op"))
    options["compression"] = compression_of(options.get("compression"))
    kind = _keras.backend()
    if kind == "tensorflow":
        from ..tensorflow import _placement
        from ..tensorflow.gradients import GradientReduction, LocalAggregation

        _placement.check(device_dense, device_sparse)
        return GradientReduction(prefix, **options), LocalAggregation(passes, average)
    for what, device in (("device_dense", device_dense), ("device_sparse", device_sparse)):
        if device:
            raise InvalidError(
                f"{what} {device}: served where Keras runs on TensorFlow, and it runs on {kind}")
    if kind == "torch":
        return _OnTorch(prefix, **options), _PythonAggregation(passes, average)
    if kind == "jax":
        if passes > 1:
            raise InvalidError(
                "backward_passes_per_step: on JAX give the optimizer gradient_accumulation_steps instead")
        return _OnJax(prefix, **options), _PythonAggregation(1, average)
    raise InvalidError(f"Keras runs on {kind}: expected tensorflow, torch or jax")

"""DistributedOptimizer for the optimizers of Keras."""

from __future__ import annotations

from typing import Any

from ..collectives import Average, Reduction
from ..errors import InvalidError
from ..process_set import global_process_set
from . import _keras
from ._gradients import reduction_and_aggregation
from ._loss_scale import spread


class _Distributed:
    """What DistributedOptimizer puts before an optimizer's class."""

    _hvd_reduction: Any
    _hvd_aggregation: Any

    def register_local_var(self, variable: Any) -> None:
        """Gradients of this variable stay this rank's own."""
        self._hvd_reduction.register_local([variable])


class _Distributed3(_Distributed):
    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        variables = list(
            self._trainable_variables if trainable_variables is None  # type: ignore[attr-defined]
            else trainable_variables)
        if trainable_variables is not None and not self.built:  # type: ignore[attr-defined]
            self.build(variables)  # type: ignore[attr-defined]  # not within a branch of the aggregation
        step = super().apply  # type: ignore[misc]
        self._hvd_aggregation(list(grads),
                              lambda sums: step(self._hvd_reduction(sums, variables), trainable_variables))

    def stateless_apply(self, optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        """On JAX. It comes by apply(), but for a LossScaleOptimizer's, which applies its inner optimizer."""
        if hasattr(self, "inner_optimizer"):
            grads = self._hvd_reduction(list(grads), self._trainable_variables)  # type: ignore[attr-defined]
        return super().stateless_apply(optimizer_variables, grads, trainable_variables)  # type: ignore[misc]


class _Distributed2(_Distributed):
    def apply_gradients(self, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        pairs = list(grads_and_vars)
        gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
        step = super().apply_gradients  # type: ignore[misc]
        if hasattr(self, "build") and not getattr(self, "_built", True):
            self.build(variables)

        def apply(sums: Any) -> None:
            pairs = list(zip(self._hvd_reduction(sums, variables), variables))
            if self._hvd_reduction.local and hasattr(self, "inner_optimizer"):  # it scales the loss by itself
                pairs = spread(self._hvd_reduction, pairs)
            self.__dict__["_hvd_applying"] = True
            try:
                step(pairs, *arguments, **options)
            finally:
                self.__dict__["_hvd_applying"] = False

        return self._hvd_aggregation(gradients, apply)

    # A LossScaleOptimizer around this one calls these before it looks for what is not finite.

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return super().aggregate_gradients(self._alike(grads_and_vars))  # type: ignore[misc]

    def _aggregate_gradients(self, grads_and_vars: Any) -> Any:  # of keras.optimizers.legacy
        return super()._aggregate_gradients(self._alike(grads_and_vars))  # type: ignore[misc]

    def _alike(self, grads_and_vars: Any) -> Any:
        if self.__dict__.get("_hvd_applying"):  # our own step does, too
            return grads_and_vars
        return spread(self._hvd_reduction, grads_and_vars)


def DistributedOptimizer(optimizer: Any, name: str | None = None, device_dense: str = "",
                         device_sparse: str = "", compression: Any = None, sparse_as_dense: bool = False,
                         gradient_predivide_factor: float = 1.0, op: Reduction = Average,
                         backward_passes_per_step: int = 1, average_aggregated_gradients: bool = False,
                         num_groups: int = 0, groups: Any = None, process_set: Any = global_process_set,
                         scale_local_gradients: bool = True) -> Any:
    """An optimizer of the same class and with the same state, whose updates use the gradients of all ranks.

    It is saved with a model under its own class, so that whoever loads the model needs no hvd; load_model
    wraps it again. With backward_passes_per_step = n, gradients add up over n steps on this rank (their sum,
    or their mean with average_aggregated_gradients) before they are reduced and applied.
    """
    if isinstance(optimizer, _Distributed):
        raise InvalidError("the optimizer is a DistributedOptimizer already")
    base: Any = type(optimizer)
    kinds = [_keras.keras.optimizers.Optimizer]
    if not _keras.IS_KERAS_3 and hasattr(_keras.keras.optimizers, "legacy"):
        kinds.append(_keras.keras.optimizers.legacy.Optimizer)
    if not isinstance(optimizer, tuple(kinds)):
        raise TypeError(
            f"expected an optimizer of {_keras.keras.__name__} {_keras.keras.__version__}, and not "
            f"{base.__module__}.{base.__qualname__}")
    reduction, aggregation = reduction_and_aggregation(
        name or f"Distributed{base.__name__}", backward_passes_per_step, average_aggregated_gradients,
        device_dense, device_sparse, compression=compression, sparse_as_dense=sparse_as_dense, op=op,
        gradient_predivide_factor=gradient_predivide_factor, num_groups=num_groups, groups=groups,
        process_set=process_set, scale_local_gradients=scale_local_gradients)
    kind: Any = type(base.__name__, (_Distributed3 if _keras.IS_KERAS_3 else _Distributed2, base),
                     {"__module__": base.__module__, "__doc__": base.__doc__})
    wrapped = kind.__new__(kind)
    object.__setattr__(wrapped, "__dict__",
                       optimizer.__dict__)  # one state: whoever holds the original sees it, too
    # Past Keras' tracking of attributes, which would take these for something to save.
    wrapped.__dict__["_hvd_reduction"], wrapped.__dict__["_hvd_aggregation"] = reduction, aggregation
    return wrapped


def PartialDistributedOptimizer(optimizer: Any, name: str | None = None, device_dense: str = "",
                                device_sparse: str = "", compression: Any = None,
                                sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
                                op: Reduction = Average, backward_passes_per_step: int = 1,
                                average_aggregated_gradients: bool = False, groups: Any = None,
                                process_set: Any = global_process_set, local_layers: Any = None,
                                scale_local_gradients: bool = True, *, num_groups: int = 0) -> Any:
    """A DistributedOptimizer that leaves the gradients of local_layers (one, or several) to each rank."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name: expected a text, and not {type(name).__name__}; layers go to local_layers=")
    wrapped = DistributedOptimizer(optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
                                   gradient_predivide_factor, op, backward_passes_per_step,
                                   average_aggregated_gradients, num_groups, groups, process_set,
                                   scale_local_gradients)
    layers = [local_layers] if hasattr(local_layers, "trainable_weights") else local_layers or []
    for layer in layers:
        for variable in layer.trainable_weights:
            wrapped.register_local_var(variable)
    return wrapped

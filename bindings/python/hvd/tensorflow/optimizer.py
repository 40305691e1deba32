"""DistributedOptimizer for the optimizers of TensorFlow: Keras' own, and those of TensorFlow 1."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from .._grouping import refuse_adasum
from ..collectives import Average, Reduction
from ..errors import InvalidError
from ..process_set import global_process_set
from . import _placement
from .compression import Compression
from .gradients import GradientReduction, LocalAggregation, _variables_of


class _DistributedV1Optimizer(tf.compat.v1.train.Optimizer):
    """Another optimizer of TensorFlow 1, whose compute_gradients() gives the gradients of all ranks."""

    def __init__(self, optimizer: Any, name: str | None, use_locking: bool, reduction: GradientReduction,
                 aggregation: LocalAggregation):
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer, self._reduction, self._aggregation = optimizer, reduction, aggregation

    def register_local_var(self, variable: Any) -> None:
        self._reduction.register_local([variable])

    def compute_gradients(self, *arguments: Any, **options: Any) -> Any:
        pairs = self._optimizer.compute_gradients(*arguments, **options)
        if self._aggregation.passes > 1:
            return pairs
        gradients, variables = zip(*pairs)
        return list(zip(self._reduction(gradients, variables), variables))

    def apply_gradients(self, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        pairs = list(grads_and_vars)
        if self._aggregation.passes == 1:
            return self._optimizer.apply_gradients(pairs, *arguments, **options)
        gradients, variables = zip(*pairs)

        def apply(sums: list[Any]) -> None:
            self._optimizer.apply_gradients(zip(self._reduction(sums, variables), variables), *arguments,
                                            **options)

        return self._aggregation(gradients, apply)

    def get_slot(self, *arguments: Any, **options: Any) -> Any:
        return self._optimizer.get_slot(*arguments, **options)

    def get_slot_names(self, *arguments: Any, **options: Any) -> Any:
        return self._optimizer.get_slot_names(*arguments, **options)

    def variables(self, *arguments: Any, **options: Any) -> Any:
        return self._optimizer.variables(*arguments, **options)


def DistributedOptimizer(optimizer: Any, name: str | None = None, use_locking: bool = False,
                         device_dense: str = "", device_sparse: str = "", compression: Any = Compression.none,
                         sparse_as_dense: bool = False, backward_passes_per_step: int = 1,
                         op: Reduction = Average, gradient_predivide_factor: float = 1.0,
                         average_aggregated_gradients: bool = False, num_groups: int = 0, groups: Any = None,
                         process_set: Any = global_process_set, scale_local_gradients: bool = True) -> Any:
    """An optimizer of the same class, whose updates use the gradients of all ranks.

    A Keras optimizer is wrapped as by hvd.keras.DistributedOptimizer. With backward_passes_per_step = n,
    gradients add up over n calls on this rank before they are reduced and applied.
    """
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if isinstance(optimizer, _DistributedV1Optimizer):
            raise InvalidError("the optimizer is a DistributedOptimizer already")
        refuse_adasum(op)
        _placement.check(device_dense, device_sparse)
        reduction = GradientReduction(name or f"Distributed{type(optimizer).__name__}", compression,
                                      sparse_as_dense, op, gradient_predivide_factor, num_groups, groups,
                                      process_set, scale_local_gradients)
        return _DistributedV1Optimizer(
            optimizer, name, use_locking, reduction,
            LocalAggregation(backward_passes_per_step, average_aggregated_gradients))
    from .. import keras as of_keras

    return of_keras.DistributedOptimizer(
        optimizer, name=name, device_dense=device_dense, device_sparse=device_sparse,
        compression=compression, sparse_as_dense=sparse_as_dense,
        backward_passes_per_step=backward_passes_per_step, op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        average_aggregated_gradients=average_aggregated_gradients, num_groups=num_groups, groups=groups,
        process_set=process_set, scale_local_gradients=scale_local_gradients)


def PartialDistributedOptimizer(optimizer: Any, name: str | None = None, *, local_layers: Any = None,
                                **options: Any) -> Any:
    """A DistributedOptimizer that leaves the gradients of local_layers (one, or several) to each rank."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name: expected a text, and not {type(name).__name__}; layers go to local_layers=")
    wrapped = DistributedOptimizer(optimizer, name, **options)
    for variable in _variables_of(local_layers):
        wrapped.register_local_var(variable)
    return wrapped

"""Gradients of all ranks together: the tapes, and what the optimizers share with them."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Sequence

import tensorflow as tf

from .._grouping import Grouping
from ..collectives import Average, Min, Reduction
from ..errors import InvalidError
from ..process_set import ProcessSet, global_process_set
from . import _placement, ops
from .compression import Compression
from .functions import name_of, value_of


def _key(variable: Any) -> Any:
    variable = value_of(variable)
    return variable.ref() if hasattr(variable, "ref") else id(variable)


class GradientReduction:
    """Reduces a list of gradients over the ranks: one operation a group, named by its first variable.

    num_groups is how many groups there are; groups are lists of variables whose gradients go together, the
    others by themselves. Without either it is one operation.
    """

    def __init__(self, prefix: str, compression: Any = Compression.none, sparse_as_dense: bool = False,
                 op: Reduction = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                 groups: Any = None, process_set: Any = global_process_set,
                 scale_local_gradients: bool = True):
        op = Reduction(op)
        if gradient_predivide_factor != 1.0 and op != Average:
            raise InvalidError(
                f"gradient_predivide_factor {gradient_predivide_factor} goes with op=Average only")
        if gradient_predivide_factor <= 0:
            raise InvalidError(
                f"gradient_predivide_factor is {gradient_predivide_factor}: expected more than 0")
        self.prefix, self.op = prefix, op
        self.compression, self.sparse_as_dense = compression, sparse_as_dense
        self.predivide, self.process_set = gradient_predivide_factor, process_set
        self.grouping = Grouping(num_groups, groups, _key)
        self.scale_local_gradients = scale_local_gradients
        self.local: set[Any] = set()

    def register_local(self, variables: Iterable[Any]) -> None:
        """Variables whose gradients stay this rank's own."""
        self.local |= {_key(variable) for variable in variables}

    def excluded(self) -> bool:
        """Whether this worker is outside the process set, and so trains by itself."""
        return isinstance(self.process_set, ProcessSet) and not self.process_set.included()

    def on_all(self, condition: Any) -> tf.Tensor:
        """Whether it holds on every rank."""
        if self.excluded():
            return condition
        return tf.cast(
            ops.allreduce(tf.cast(condition, tf.int32), op=Min, name=f"{self.prefix}.on_all",
                          process_set=self.process_set), tf.bool)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        if len(gradients) != len(variables):
            raise InvalidError(f"{len(gradients)} gradients for {len(variables)} variables")
        results = list(gradients)
        if self.excluded():
            return results
        keys, shared = [_key(variable) for variable in variables], []
        for index, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if keys[index] in self.local:
                results[index] = self._local(gradient)
            else:
                shared.append(index)
        for indices in self.grouping.parts(shared, keys):
            reduced = self._reduce([gradients[i] for i in indices], name_of(variables[indices[0]]))
            for index, gradient in zip(indices, reduced):
                results[index] = gradient
        return results

    def _local(self, gradient: Any) -> Any:
        """With an average of the others' gradients goes a local one by the number of ranks: the loss is a
        mean, too."""
        if not self.scale_local_gradients or self.op != Average:
            return gradient
        values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        scaled = values / tf.cast(ops.size_op(self.process_set), values.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(scaled, gradient.indices, gradient.dense_shape)
        return scaled

    def _reduce(self, gradients: list[Any], first: str) -> list[Any]:
        if self.sparse_as_dense:
            gradients = [tf.convert_to_tensor(g) for g in gradients]
        name = f"{self.prefix}.{first}.{len(gradients)}"
        scale: dict[str, Any] = {}
        if self.predivide != 1.0:
            # The sum is divided once before and once after: together by the number of ranks, as the average
            # does.
            scale = {"prescale_factor": 1.0 / self.predivide, "postscale_factor": self.predivide}
        return ops.grouped_allreduce(gradients, op=self.op, compression=self.compression, name=name,
                                     process_set=self.process_set, **scale)


class _DistributedTape:
    """What DistributedGradientTape puts before tf.GradientTape."""

    _hvd: GradientReduction

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None,
                 unconnected_gradients: Any = tf.UnconnectedGradients.NONE, *,
                 use_generic_names: bool = False, **options: Any) -> Any:
        """use_generic_names has no effect: names are the same on all ranks anyway."""
        tape: Any = super()
        found = tape.gradient(target, sources, output_gradients, unconnected_gradients, **options)
        flat_sources, flat = tf.nest.flatten(sources), tf.nest.flatten(found, expand_composites=False)
        return tf.nest.pack_sequence_as(sources, self._hvd(flat, flat_sources))

    def get_local_and_global_gradients(self, target: Any, sources: Sequence[Any],
                                       output_gradients: Any = None,
                                       use_generic_names: bool = False) -> tuple[list[Any], list[Any]]:
        """(source, gradient) of the local sources, and of the others, each in the order of `sources`."""
        pairs: tuple[list[Any], list[Any]] = [], []
        for source, gradient in zip(sources, self.gradient(target, sources, output_gradients)):
            pairs[_key(source) not in self._hvd.local].append((source, gradient))
        return pairs

    def register_local_source(self, source: Any) -> None:
        """Gradients of this variable stay this rank's own."""
        self._hvd.register_local([source])


def DistributedGradientTape(gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "",
                            compression: Any = Compression.none, sparse_as_dense: bool = False,
                            op: Reduction = Average, gradient_predivide_factor: float = 1.0,
                            num_groups: int = 0, groups: Any = None, process_set: Any = global_process_set,
                            scale_local_gradients: bool = True) -> Any:
    """A tape like `gradtape`, and with its records, whose gradient() gives the gradients of all ranks
    together.

    It may be made before or after what it records. Sources are variables (they name the operation); gradients
    that are None stay None.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"expected a tf.GradientTape, and not {type(gradtape).__name__}")
    if isinstance(gradtape, _DistributedTape):
        raise InvalidError("the tape is a DistributedGradientTape already")
    _placement.check(device_dense, device_sparse)
    kind = type(gradtape)
    wrapped: Any = type(kind.__name__, (_DistributedTape, kind), {})
    tape = wrapped.__new__(wrapped)
    tape.__dict__ = gradtape.__dict__  # one record: what the original sees, this one sees
    tape._hvd = GradientReduction("DistributedGradientTape", compression, sparse_as_dense, op,
                                  gradient_predivide_factor, num_groups, groups, process_set,
                                  scale_local_gradients)
    return tape


def _variables_of(local_layers: Any) -> list[Any]:
    layers = [local_layers] if hasattr(local_layers, "trainable_weights") else local_layers or []
    return [variable for layer in layers for variable in layer.trainable_weights]


def PartialDistributedGradientTape(gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "",
                                   compression: Any = Compression.none, sparse_as_dense: bool = False,
                                   op: Reduction = Average, gradient_predivide_factor: float = 1.0,
                                   num_groups: int = 0, groups: Any = None,
                                   process_set: Any = global_process_set, local_layers: Any = None,
                                   scale_local_gradients: bool = True) -> Any:
    """A DistributedGradientTape that leaves the gradients of local_layers (a Keras layer, or several) to each
    rank."""
    tape = DistributedGradientTape(gradtape, device_dense, device_sparse, compression, sparse_as_dense, op,
                                   gradient_predivide_factor, num_groups, groups, process_set,
                                   scale_local_gradients)
    tape._hvd.register_local(_variables_of(local_layers))
    return tape


class LocalAggregation:
    """Adds gradients up over several passes on this rank; every n-th time they are reduced and applied."""

    def __init__(self, passes: int, average: bool):
        if passes < 1:
            raise InvalidError(f"backward_passes_per_step is {passes}: expected at least 1")
        self.passes, self.average = passes, average
        self._sums: list[Any] = []
        self._count: Any = None

    def _prepare(self, gradients: Sequence[Any]) -> None:
        if self._count is not None:
            return
        with tf.init_scope():
            self._count = tf.Variable(0, dtype=tf.int64, trainable=False, name="hvd_passes")
            self._sums = [
                None if g is None else tf.Variable(tf.zeros(g.shape, g.dtype), trainable=False,
                                                   name=f"hvd_sum_{i}") for i, g in enumerate(gradients)
            ]

    def __call__(self, gradients: Sequence[Any], apply: Callable[[list[Any]], Any]) -> Any:
        """Adds them; when it is time, calls apply with the sums (or their means). Whether it did, as a
        tensor."""
        if self.passes == 1:
            apply(list(gradients))
            return tf.constant(True)
        dense = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
        self._prepare(dense)
        assert self._count is not None
        if [s is None for s in self._sums] != [g is None for g in dense]:
            raise InvalidError(
                "backward_passes_per_step: other variables have gradients than in the first pass")
        for total, gradient in zip(self._sums, dense):
            if total is not None:
                total.assign_add(gradient)
        self._count.assign_add(1)

        def due() -> tf.Tensor:
            scale = 1.0 / self.passes if self.average else 1.0
            apply([None if s is None else s.read_value() * tf.cast(scale, s.dtype) for s in self._sums])
            for total in self._sums:
                if total is not None:
                    total.assign(tf.zeros_like(total))
            self._count.assign(0)
            return tf.constant(True)

        return tf.cond(self._count >= self.passes, due, lambda: tf.constant(False))

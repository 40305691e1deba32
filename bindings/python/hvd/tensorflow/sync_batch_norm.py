"""SyncBatchNormalization: Keras' batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..collectives import Sum
from ..keras import _keras
from ..process_set import global_process_set
from . import ops


class SyncBatchNormalization(_keras.keras.layers.BatchNormalization):
    """BatchNormalization whose mean and variance in training are those of all ranks' batches together.

    Batches may differ in size. Gradients go through the sums over the ranks; those of gamma and beta are this
    rank's share, which DistributedOptimizer and DistributedGradientTape reduce. All ranks (of process_set)
    call it in the same order. Keras on TensorFlow alone.
    """

    def __init__(self, *arguments: Any, process_set: Any = global_process_set, **options: Any):
        if options.get("synchronized"):
            raise ValueError("synchronized=True: expected it to be left out, this layer synchronizes by hvd")
        super().__init__(*arguments, **options)
        self._hvd_process_set = process_set

    def _moments(self, inputs: Any, *arguments: Any, **options: Any) -> Any:
        mean, variance = super()._moments(inputs, *arguments, **options)
        shape, wide = tf.shape(mean), tf.float64 if mean.dtype == tf.float64 else tf.float32
        mine, squares = (tf.reshape(tf.cast(values, wide), [-1]) for values in (mean, variance))
        mask = next((a for a in (*arguments, options.get("mask")) if tf.is_tensor(a)), None)
        elements = tf.size(inputs, tf.int64) if mask is None else tf.math.count_nonzero(mask) * (
            tf.size(inputs, tf.int64) // tf.size(mask, tf.int64))
        channels = tf.size(mine, tf.int64)
        count = tf.cast(elements // channels, wide)
        # Of no sample there is no mean: it counts nothing.
        mine, squares = (tf.where(count > 0, values, tf.zeros_like(values)) for values in (mine, squares))
        sums = self._over_ranks(tf.concat([mine * count, [count]], 0))
        total = tf.stop_gradient(sums[-1])
        whole = sums[:-1] / total
        spread = self._over_ranks(count * (squares + (mine - whole) ** 2)) / total
        return tuple(tf.cast(tf.reshape(values, shape), mean.dtype) for values in (whole, spread))

    def _over_ranks(self, values: tf.Tensor) -> tf.Tensor:
        return ops.allreduce(values, op=Sum, process_set=self._hvd_process_set)

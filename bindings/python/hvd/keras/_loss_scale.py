"""Loss scaling of mixed_float16: all ranks take a step, or none does.

Keras' LossScaleOptimizer looks at a rank's own gradients and steps over its inner optimizer where one is not
finite. The others would wait in the reduction for that rank, and go on with another scale.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from . import _keras


def _reduction_of(optimizer: Any) -> Any:
    return getattr(optimizer, "__dict__", {}).get("_hvd_reduction")


def _look_at_all() -> None:
    """Keras 3 wraps a model's optimizer where it is compiled, so that its class is what asks the others."""
    kind = _keras.keras.optimizers.LossScaleOptimizer
    check = getattr(kind, "check_finite", None)
    if check is None or hasattr(check, "_hvd"):
        return

    @wraps(check)
    def check_finite(self: Any, grads: Any) -> Any:
        finite = check(self, grads)
        inside, around = _reduction_of(self.inner_optimizer), _reduction_of(self)
        if inside is None and (around is None or not around.local):  # reduced gradients are the same on all
            return finite
        return (inside or around).on_all(finite)

    check_finite._hvd = True  # type: ignore[attr-defined]
    kind.check_finite = check_finite


if _keras.IS_KERAS_3:
    _look_at_all()


def spread(reduction: Any, grads_and_vars: Any) -> list[tuple[Any, Any]]:
    """For tf_keras, whose LossScaleOptimizer lets its inner optimizer prepare what it looks at: gradients of
    which one is not finite on some rank are not on any."""
    import tensorflow as tf

    pairs = list(grads_and_vars)
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g, _ in pairs if g is not None]
    finite = reduction.on_all(tf.reduce_all([tf.reduce_all(tf.math.is_finite(value)) for value in values]))

    def marked(gradient: Any) -> Any:
        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(marked(gradient.values), gradient.indices, gradient.dense_shape)
        return tf.where(finite, gradient, tf.constant(float("nan"), gradient.dtype))

    return [(marked(gradient), variable) for gradient, variable in pairs]

"""Which Keras it is, and what differs: Keras 3 on TensorFlow, PyTorch or JAX, or Keras 2: that of package
tf_keras, or of TensorFlow before 2.16."""

from __future__ import annotations

import os
from typing import Any

from ..errors import InvalidError


def _find() -> Any:
    if os.environ.get("TF_USE_LEGACY_KERAS") in ("1", "true", "True"):
        try:
            import tf_keras
            return tf_keras
        except ImportError:  # TensorFlow before 2.16 needs none
            pass
    import keras
    if not keras.__version__.startswith("2."):
        return keras
    import tensorflow  # has the names that are public: in package keras of that time they are elsewhere
    return tensorflow.keras


keras = _find()

IS_KERAS_3 = not keras.__version__.startswith("2.")


def backend() -> str:
    return keras.backend.backend() if IS_KERAS_3 else "tensorflow"


def live(model: Any) -> None:
    """On JAX a model's variables are behind while fit() runs, until they are asked for."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def variables_of(optimizer: Any) -> list[Any]:
    """All of an optimizer's variables, slots included, which are made if they are not there yet."""
    found = optimizer.variables
    return list(found() if callable(found) else found)


def build(optimizer: Any, model: Any) -> None:
    """Makes the slots that an optimizer would make in its first step."""
    if hasattr(optimizer, "build"):
        if not getattr(optimizer, "built", getattr(optimizer, "_built", False)):
            optimizer.build(model.trainable_variables)
    elif hasattr(optimizer, "_create_all_weights"):  # one of keras.optimizers.legacy
        optimizer._create_all_weights(list(model.trainable_variables))
    else:
        raise InvalidError(f"{type(optimizer).__name__}: expected an optimizer of {keras.__name__}, whose "
                           "variables can be made before its first step")


def dtype_of(tensor: Any) -> str:
    return keras.backend.standardize_dtype(tensor.dtype) if IS_KERAS_3 else tensor.dtype.name


def cast(tensor: Any, dtype: str) -> Any:
    """A tensor of the backend's, or a NumPy array."""
    if IS_KERAS_3:
        return keras.ops.cast(tensor, dtype)
    import tensorflow

    return tensorflow.cast(tensor, dtype)

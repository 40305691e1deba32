"""Variables of TensorFlow in a native state: their memory is read and written at commits, with no copy by
Python.

A variable's memory may be another one after each assignment (TensorFlow copies on write), so that it can't be
registered once and for all. At a commit the library copies from where the value is then; a restore or a sync
assigns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from ..elastic import State
from . import _bridge


def add_variable(state: State, key: str, variable: tf.Variable, session: Any = None) -> None:
    """session: where the variable of a TensorFlow 1 graph lives; None: eager mode."""
    shape, dtype = tuple(variable.shape), variable.dtype.as_numpy_dtype
    if any(extent is None for extent in shape):
        raise ValueError(
            f"variable {variable.name!r} of shape {variable.shape}: expected one that is fully known")

    def get() -> np.ndarray:
        return variable.eval(session) if session is not None else _bridge.array_of(variable)

    def put(data: memoryview) -> None:
        value = _bridge.empty(shape, dtype)
        value.reshape(-1).view(np.uint8)[...] = np.frombuffer(data, np.uint8)
        if session is not None:
            variable.load(value, session)
        else:
            _bridge.assign(variable, value)

    state.add_memory(key, get, put)

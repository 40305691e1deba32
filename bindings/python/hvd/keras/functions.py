"""Values, variables and models between ranks, for Keras on any backend."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from .. import _default as plain
from ..collectives import Average, Reduction, Sum
from ..errors import InvalidError
from . import _keras
from .compression import compression_of
from .optimizer import DistributedOptimizer


def _array(value: Any) -> np.ndarray:
    return np.asarray(_keras.keras.ops.convert_to_numpy(value) if _keras.IS_KERAS_3 else value, order="C")


def allreduce(value: Any, name: str | None = None, average: bool | None = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, op: Reduction | None = None, compression: Any = None) -> Any:
    """A number, an array or a tensor: its reduction over the ranks, as a NumPy array or number."""
    if average is not None and op is not None:
        raise InvalidError("give op or average, and not both")
    operation, how = op or (Average if average is None or average else Sum), compression_of(compression)
    packed, context = how.compress(_array(value))
    array = _array(packed)
    result = plain.allreduce(array.reshape(-1), name, operation, prescale_factor=prescale_factor,
                             postscale_factor=postscale_factor)
    return _array(how.decompress(result, context)).reshape(np.shape(value))[()]


def allgather(value: Any, name: str | None = None) -> np.ndarray:
    """All ranks' rows."""
    return plain.allgather(_array(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """The root's value on every rank, as a NumPy array or number."""
    return plain.broadcast(_array(value).reshape(-1), root_rank, name).reshape(np.shape(value))[()]


def reducescatter(value: Any, name: str | None = None, op: Reduction = Average) -> np.ndarray:
    """This rank's share of the rows of the reduction."""
    return plain.reducescatter(_array(value), name, op)


def _key(variable: Any) -> int:
    """The same for a variable of Keras 3 and the tf.Variable behind it."""
    if _keras.backend() == "tensorflow":
        from ..tensorflow.functions import value_of

        variable = value_of(variable)
    return id(variable)


def broadcast_model(model: Any, root_rank: int = 0, optimizer: Any = None,
                    local_variables: Sequence[Any] = ()) -> None:
    """The root's weights, and the state of its optimizer, on every rank, as one operation; but for
    local_variables."""
    _keras.live(model)
    optimizer = optimizer or getattr(model, "optimizer", None)
    local = {_key(variable) for variable in local_variables}
    variables = [variable for variable in model.weights if _key(variable) not in local]
    if optimizer is not None:
        _keras.build(optimizer, model)
        variables += _keras.variables_of(optimizer)
    broadcast_variables(variables, root_rank, "broadcast_model")


def broadcast_variables(variables: Sequence[Any], root_rank: int, name: str | None = None) -> None:
    """The root's values into every rank's variables of Keras, as one operation."""
    if not variables:
        return
    arrays = [np.array(_array(variable), order="C") for variable in variables]
    # A scalar as one element: some backends hand out scalars that are no arrays.
    plain.broadcast_variables([array.reshape(-1) for array in arrays], root_rank, name or
                              "broadcast_variables")
    if plain.rank() != root_rank:
        for variable, array in zip(variables, arrays):
            variable.assign(array)


def load_model(filepath: Any, custom_optimizers: Any = None, custom_objects: dict | None = None,
               compression: Any = None, legacy_opts: bool = False) -> Any:
    """A saved model, whose optimizer becomes a DistributedOptimizer with the state that was saved.

    legacy_opts has no effect: the file says of which kind the optimizer is.
    """
    known = {kind.__name__: kind for kind in custom_optimizers or []}
    model = _keras.keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model

"""hvd.tensorflow.elastic: as horovod.tensorflow.elastic."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, Sequence

import tensorflow as tf

from ..codec import CodecLike
from ..context import Context
from ..elastic import ElasticSampler, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State
from ..elastic import run as _run
from ..errors import InvalidError
from . import _bridge
from ._variables import add_variable
from .functions import name_of, value_of


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """hvd.elastic.run for functions that run graphs: the error of an operation within one is seen as what it
    is."""

    @wraps(function)
    def looked_through(*arguments: Any, **options: Any) -> Any:
        with _bridge.original_errors():
            return function(*arguments, **options)

    return _run(looked_through)


class TensorFlowState(ObjectState):
    """TensorFlowState(variables, epoch=0, batch=0): tf.Variables, each by itself, and values as attributes.

    variables: the same on every rank in the same order; by default all global variables of a TensorFlow 1
    graph. session: for graphs of TensorFlow 1, where the variables live; None: eager mode.
    """

    def __init__(self, variables: Sequence[Any] | None = None, session: Any = None, *,
                 codec: CodecLike | None = None, context: Context | None = None, **values: Any):
        if session is None:
            session = tf.compat.v1.get_default_session()
        if variables is None:
            if tf.executing_eagerly():
                raise InvalidError(
                    "variables: expected the tf.Variables to keep; only graphs of TensorFlow 1 know all")
            variables = tf.compat.v1.global_variables()
        super().__init__(codec=codec, context=context, **values)
        object.__setattr__(self, "variables", list(variables))
        object.__setattr__(self, "session", session)
        for index, variable in enumerate(variables):
            target = value_of(variable)
            if not isinstance(target, tf.Variable):
                raise TypeError(
                    f"variables, entry {index}: expected a tf.Variable or a Keras variable, and not "
                    f"{type(variable).__name__}")
            add_variable(self, f"variables.{index}.{name_of(variable)}", target, session)


def __getattr__(name: str) -> Any:
    if name == "TensorFlowKerasState":  # Keras is loaded when it is asked for
        from ..keras.elastic import TensorFlowKerasState

        return TensorFlowKerasState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State",
           "TensorFlowKerasState", "TensorFlowState", "run"]

"""Variables and objects from one rank to all."""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

import numpy as np
import tensorflow as tf

from .. import _default as plain
from ..codec import CodecLike
from ..errors import InvalidError
from ..process_set import global_process_set
from . import _bridge, _graph

_PORTION = 16 << 20  # bytes of variables that are broadcast together in eager mode


def value_of(variable: Any) -> Any:
    """The tf.Variable behind a Keras variable, or the variable itself."""
    inner = getattr(variable, "value", None)
    return inner if isinstance(inner, tf.Variable) else variable


def name_of(variable: Any) -> str:
    """What tells a variable apart in a model: Keras' path, or TensorFlow's name. A tensor that a tape watches
    has none in eager mode."""
    return getattr(variable, "path", None) or getattr(variable, "name", None) or "tensor"


def _room_for(variable: tf.Variable) -> np.ndarray:
    """An array for another value of a variable."""
    if variable.shape.is_fully_defined():
        return _bridge.empty(variable.shape, variable.dtype.as_numpy_dtype)
    present = _bridge.array_of(variable)
    return _bridge.empty(present.shape, present.dtype)


def _portions(variables: Sequence[tf.Variable]) -> list[list[tf.Variable]]:
    """In order, at most _PORTION bytes each or one variable. Shapes that are fixed alone count, so that every
    rank finds the same."""
    portions: list[list[tf.Variable]] = [[]]
    held = 0
    for variable in variables:
        size = variable.dtype.size * math.prod(variable.shape) if variable.shape.is_fully_defined() else 0
        if portions[-1] and held + size > _PORTION:
            portions.append([])
            held = 0
        portions[-1].append(variable)
        held += size
    return portions


def _broadcast_eagerly(targets: Sequence[tf.Variable], root_rank: int, label: str, process_set: Any) -> None:
    root = plain.rank() == root_rank
    portions = _portions(targets)
    for index, portion in enumerate(portions):
        if root:  # sent from where it is
            arrays = [_bridge.alias(_bridge.array_of(target)) for target in portion]
        else:
            arrays = [_room_for(target) for target in portion]
        more = []
        if index == 0 and len(portions) > 1:  # ranks with other numbers of variables shall find out here
            more = [np.empty((0, len(targets)), np.uint8)]
        plain.broadcast_variables(arrays + more, root_rank, f"{label}.{index}" if index else label,
                                  process_set=process_set)
        if not root:
            for target, array in zip(portion, arrays):
                _bridge.assign(target, array)


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: Any = global_process_set,
                        inplace: bool = False, name: str | None = None) -> Any:
    """The root's values into every rank's variables. In a graph: the operation that does it.

    Variables of TensorFlow and of Keras, the same on every rank in the same order. A graph does it in one
    operation, eager mode in one for each 16 MiB: more memory than that is not needed. `inplace` is taken for
    Horovod's sake: values are assigned either way, so that no other tensor that shares a variable's memory
    changes.
    """
    targets = [value_of(variable) for variable in variables]
    for index, target in enumerate(targets):
        if not isinstance(target, tf.Variable):
            raise TypeError(
                f"broadcast_variables, entry {index}: expected a tf.Variable or a Keras variable, and not "
                f"{type(variables[index]).__name__}")
    if not targets:
        return tf.no_op() if not tf.executing_eagerly() else None
    label = name or "broadcast_variables"

    if tf.executing_eagerly():
        _broadcast_eagerly(targets, root_rank, label, process_set)
        return None

    def send(*arrays: np.ndarray) -> list[np.ndarray]:
        """What the root has is sent from where it is. It gives that back."""
        root = plain.rank() == root_rank
        results = [_bridge.alias(a) if root else _bridge.empty(a.shape, a.dtype) for a in arrays]
        plain.broadcast_variables(results, root_rank, label, process_set=process_set)
        return list(arrays) if root else results

    values = _bridge.call(send, [target.read_value() for target in targets],
                          [target.dtype for target in targets], [target.shape for target in targets],
                          "HvdBroadcastVariables",
                          dict(kind=_graph.BROADCAST, key=label, root=root_rank, process_set=process_set))
    operation = tf.group(*[target.assign(value) for target, value in zip(targets, values)])
    return None if tf.inside_function() else operation  # tf.function runs its assignments by itself


def broadcast_(variables: Sequence[Any], root_rank: int, name: str | None = None,
               process_set: Any = global_process_set) -> Any:
    """As broadcast_variables; gives the variables back."""
    broadcast_variables(variables, root_rank, process_set, name=name)
    return list(variables)


def broadcast_global_variables(root_rank: int) -> tf.Operation:
    """For graphs of TensorFlow 1: the operation that broadcasts all global variables."""
    if tf.executing_eagerly():
        raise RuntimeError("broadcast_global_variables() is for graphs: in eager mode call "
                           "broadcast_variables(model.variables, root_rank)")
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def _only_without(session: Any) -> None:
    if session is not None and not isinstance(session, tf.compat.v1.Session):
        raise TypeError(f"session: expected a tf.compat.v1.Session or None, and not {type(session).__name__}")


def broadcast_object(obj: Any = None, root_rank: int = 0, session: Any = None, name: str | None = None,
                     process_set: Any = global_process_set, codec: CodecLike | None = None) -> Any:
    """The root's object on every rank. It needs no session: objects do not travel through TensorFlow."""
    _only_without(session)
    options: dict[str, Any] = {} if codec is None else {"codec": codec}
    if process_set is not global_process_set:
        return _among_members(obj, root_rank, name, process_set, options)
    return plain.broadcast_object(obj, root_rank, name, **options)


def _among_members(obj: Any, root_rank: int, name: str | None, process_set: Any, options: dict) -> Any:
    ranks = process_set.ranks
    if root_rank not in ranks:
        raise InvalidError(f"root_rank {root_rank} is not one of the members {ranks} of {process_set.name!r}")
    mine = obj if plain.rank() == root_rank else None
    return plain.allgather_object(mine, name, process_set=process_set, **options)[ranks.index(root_rank)]


def broadcast_object_fn(root_rank: int = 0, session: Any = None, name: str | None = None,
                        process_set: Any = global_process_set) -> Callable[[Any], Any]:
    """broadcast_object with everything but the object fixed."""
    _only_without(session)
    return lambda obj: broadcast_object(obj, root_rank, None, name, process_set)


def allgather_object(obj: Any, session: Any = None, name: str | None = None,
                     process_set: Any = global_process_set, codec: CodecLike | None = None) -> list[Any]:
    """Every rank's object, in rank order."""
    _only_without(session)
    options: dict[str, Any] = {} if codec is None else {"codec": codec}
    return plain.allgather_object(obj, name, process_set=process_set, **options)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts all global variables of a TensorFlow 1 graph from root_rank when the session is made."""

    def __init__(self, root_rank: int, device: str = ""):
        super().__init__()
        self.root_rank = root_rank
        self._graph: Any = None
        self._operation: Any = None

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        if self._graph is not graph:
            self._graph, self._operation = graph, broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self._operation)

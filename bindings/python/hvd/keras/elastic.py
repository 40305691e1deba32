"""hvd.keras.elastic: states for Keras models, the run loop, and the callbacks that keep a state up to date.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ..codec import CodecLike
from ..context import Context
from ..elastic import ElasticSampler, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State
from ..elastic import run as _plain_run
from ..errors import InvalidError
from . import _keras

__all__ = [
    "CommitStateCallback", "ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "KerasState",
    "ObjectState", "State", "TensorFlowKerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback",
    "run"
]

_Callback: Any = _keras.keras.callbacks.Callback


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """hvd.elastic.run; on TensorFlow and JAX it sees what is behind the error of a compiled step."""
    kind = _keras.backend()
    if kind == "tensorflow":
        from ..tensorflow.elastic import run as tensorflow_run

        return tensorflow_run(function)
    if kind == "jax":
        from ..jax.elastic import run as jax_run

        return jax_run(function)
    return _plain_run(function)


def _add(state: State, key: str, variable: Any) -> None:
    kind = _keras.backend()
    if kind == "tensorflow":
        from ..tensorflow._variables import add_variable
        from ..tensorflow.functions import value_of

        add_variable(state, key, value_of(variable))
    elif kind == "torch":
        state.add_array(key, variable.value.detach())
    else:
        shape, dtype = tuple(variable.shape), np.dtype(_keras.keras.ops.convert_to_numpy(variable).dtype)

        def put(data: memoryview) -> None:
            variable.assign(np.frombuffer(data, dtype).reshape(shape).copy())

        state.add_memory(key, lambda: np.asarray(variable.value, order="C"), put)


class KerasState(ObjectState):
    """KerasState(model, optimizer=None, epoch=0, batch=0): weights, the optimizer's variables, values as
    attributes.

    Each variable is committed, restored and synced by itself, from and to the framework's own memory. The
    model must be built; the optimizer (the model's, if none is given) is built here, so that its slots are
    there from the beginning. Weights are the model's `weights`: what metrics and random seeds count stays
    each rank's own.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, *,
                 codec: CodecLike | None = None, context: Context | None = None, **values: Any):
        if not getattr(model, "built", True):
            raise InvalidError("the model is not built yet: call model.build(input_shape), or the model once")
        super().__init__(codec=codec, context=context, **values)
        optimizer = optimizer or getattr(model, "optimizer", None)
        for name, value in (("model", model), ("optimizer", optimizer)):
            object.__setattr__(self, name, value)
            self._fixed.add(name)
        for index, variable in enumerate(model.weights):
            _add(self, f"model.{index}", variable)
        if optimizer is not None:
            _keras.build(optimizer, model)
            for index, variable in enumerate(_keras.variables_of(optimizer)):
                _add(self, f"optimizer.{index}", variable)

    def save(self) -> None:
        _keras.live(self.model)
        super().save()

    def commit(self) -> None:
        _keras.live(self.model)
        super().commit()


TensorFlowKerasState = KerasState


class CommitStateCallback(_Callback):
    """Commits the state every batches_per_commit batches and at the end of each epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1):
        super().__init__()
        if batches_per_commit < 1:
            raise InvalidError(f"batches_per_commit is {batches_per_commit}: expected at least 1")
        self.state, self.batches_per_commit = state, batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self._left = self.batches_per_commit  # the same on every rank after a reset

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self._left -= 1
        if self._left == 0:
            self._left = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(_Callback):
    """Keeps state.batch at the batch of the epoch; 0 between epochs. List it before CommitStateCallback.

    The first epoch after a reset has as many batches less as were done: give fit() steps_per_epoch.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state, self._first = state, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._first = self.state.batch

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        self.state.batch = self._first + batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.batch = 0


class UpdateEpochStateCallback(_Callback):
    """Keeps state.epoch at the number of epochs that are done, over all resets. List it before
    CommitStateCallback."""

    def __init__(self, state: Any):
        super().__init__()
        self.state, self._first = state, state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        self._first = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.state.epoch = self._first + epoch + 1


__all__ = [
    "CommitStateCallback", "ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "KerasState",
    "ObjectState", "State", "TensorFlowKerasState", "UpdateBatchStateCallback", "UpdateEpochStateCallback",
    "run"
]

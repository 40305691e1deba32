"""hvd.keras.callbacks: as horovod.keras.callbacks, for Keras on any backend."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from .. import _default as plain
from ..errors import InvalidError
from ..process_set import global_process_set
from . import _keras
from .functions import broadcast_model

_Callback: Any = _keras.keras.callbacks.Callback


class BroadcastGlobalVariablesCallback(_Callback):
    """Broadcasts the model and its optimizer from root_rank once, after the first batch, when everything is
    built.

    local_variables: a variable of the model, or several, that stay each rank's own.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None):
        super().__init__()
        if local_variables is None:
            local_variables = []
        elif hasattr(local_variables, "assign"):
            local_variables = [local_variables]
        self.root_rank, self._done, self._local = root_rank, False, list(local_variables)
        for index, variable in enumerate(self._local):
            if not hasattr(variable, "assign"):
                raise InvalidError(
                    f"local_variables, entry {index}: expected a variable, and not {type(variable).__name__}")

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._done:
            broadcast_model(self.model, self.root_rank, local_variables=self._local)
            self._done = True

    def register_local_var(self, variable: Any) -> None:
        """This variable stays each rank's own."""
        self._local.append(variable)


class MetricAverageCallback(_Callback):
    """Puts the ranks' mean in the place of each metric at the end of an epoch: list it before what reads
    metrics."""

    def __init__(self, device: str = "", process_set: Any = global_process_set):
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if not logs:
            return
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        values = np.array([float(logs[name]) for name in names])
        means = plain.allreduce(values, "MetricAverageCallback", process_set=self.process_set)
        logs.update(zip(names, means.tolist()))


def _velocities(optimizer: Any, model: Any) -> list[Any]:
    """What an optimizer with momentum adds up. The rate is within it, which it is not for Adam's moments."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not hasattr(optimizer, "momentum"):
        return []
    if hasattr(optimizer, "get_slot_names"):  # one of keras.optimizers.legacy
        slots = "momentum" in optimizer.get_slot_names()
        return [optimizer.get_slot(variable, "momentum") for variable in model.trainable_variables if slots]
    return list(getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", None) or [])


class LearningRateScheduleCallback(_Callback):
    """Sets the learning rate to initial_lr * multiplier(epoch) from start_epoch on, until end_epoch.

    A constant multiplier stands for exponential decay: multiplier ** (epoch - start_epoch). staircase: once
    an epoch; otherwise before each batch, with a fraction of the epoch (steps_per_epoch is taken from fit()
    where it knows). momentum_correction: scales the velocity of an optimizer with momentum along with the
    rate.
    """

    def __init__(self, initial_lr: float, multiplier: float | Callable[[float], float], start_epoch: int = 0,
                 end_epoch: int | None = None, staircase: bool = True, momentum_correction: bool = True,
                 steps_per_epoch: int | None = None):
        super().__init__()
        if initial_lr is None or initial_lr <= 0:
            raise InvalidError(f"initial_lr is {initial_lr}: expected more than 0")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.multiplier = staircase, multiplier
        if not callable(multiplier):
            self.multiplier = lambda epoch: multiplier**(epoch - start_epoch)
        self.momentum_correction, self.steps_per_epoch = momentum_correction, steps_per_epoch
        self._epoch = 0
        self._steps: Any = steps_per_epoch  # None: fit() may know

    def on_train_begin(self, logs: Any = None) -> None:
        self._steps = self.steps_per_epoch or (self.params or {}).get("steps")
        if not self.staircase and not self._steps:
            raise InvalidError("steps_per_epoch: expected the number of batches, as fit() does not know it")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._epoch < self.start_epoch or (self.end_epoch is not None and self._epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._set(self._epoch + batch / self._steps)
        elif batch == 0:
            self._set(self._epoch)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self) -> float:
        rate = self.model.optimizer.learning_rate
        return float(_keras.keras.ops.convert_to_numpy(rate) if _keras.IS_KERAS_3 else rate.numpy())

    def _set(self, epoch: float) -> None:
        _keras.live(self.model)
        optimizer, before = self.model.optimizer, self._rate()
        optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)
        after = self._rate()
        if self.momentum_correction and before > 0 and after != before:
            # Goyal et al., 2017. Horovod scales the momentum itself for one batch, which does the same. A
            # compiled step would not see that: to it the momentum is a constant.
            for velocity in _velocities(optimizer, self.model):
                velocity.assign(velocity * (after / before))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the rate from initial_lr / size to initial_lr in the first warmup_epochs (Goyal et al., 2017).
    """

    def __init__(self, initial_lr: float, warmup_epochs: int = 5, momentum_correction: bool = True,
                 steps_per_epoch: int | None = None, verbose: int = 0):
        if warmup_epochs < 1:
            raise InvalidError(f"warmup_epochs is {warmup_epochs}: expected at least 1")

        def multiplier(epoch: float) -> float:
            epoch += 1.0 / self._steps  # so that the last batch of the warm-up has the whole rate
            return 1.0 / plain.size() * (epoch * (plain.size() - 1) / warmup_epochs + 1)

        super().__init__(initial_lr, multiplier, end_epoch=warmup_epochs, staircase=False,
                         momentum_correction=momentum_correction, steps_per_epoch=steps_per_epoch)
        self.warmup_epochs, self.verbose = warmup_epochs, verbose

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose and plain.rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._rate():g}.")


class BestModelCheckpoint(_keras.keras.callbacks.ModelCheckpoint):
    """A ModelCheckpoint that keeps the best model, on rank 0 alone.

    filepath: where, unless the attribute `filepath` is set before training, as Horovod's has to be.
    """

    def __init__(self, monitor: str = "val_loss", verbose: int = 0, save_weights_only: bool = False,
                 mode: str = "auto", save_freq: Any = "epoch", *, filepath: Any = None, **options: Any):
        if not isinstance(save_weights_only, bool):  # horovod.keras has no such parameter before `mode`
            raise TypeError(f"save_weights_only is {save_weights_only!r}: expected True or False")
        some = "model.weights.h5" if save_weights_only else "model.keras"  # Keras looks at the ending
        super().__init__(filepath or some, monitor=monitor, verbose=verbose, save_best_only=True,
                         save_weights_only=save_weights_only, mode=mode, save_freq=save_freq, **options)
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        if self.filepath is None:
            raise InvalidError("filepath is None: expected a path, by filepath= or the attribute")
        if plain.rank() == 0:
            super().on_train_begin(logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if plain.rank() == 0:
            super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if plain.rank() == 0:
            super().on_epoch_end(epoch, logs)

"""hvd.torch.elastic: as horovod.torch.elastic."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..codec import CodecLike
from ..context import Context
from ..elastic import ArrayState, ElasticSampler, HorovodInternalError, HostsUpdatedInterrupt, ObjectState, State, run
from .optimizer import _Distributed


class TorchState(ObjectState):
    """TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0, batch=0).

    Parameters and buffers of modules are kept in place: each is committed, restored and synced by itself. Optimizers
    and anything else with state_dict and load_state_dict (schedulers, scalers) go through the codec; "json" knows
    tensors. ElasticSamplers are handled by the library. The rest are values.
    """

    def __init__(self, model: torch.nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None, *,
                 codec: CodecLike = "json", context: Context | None = None, **values: Any):
        given: dict[str, Any] = {}
        if model is not None:
            given["model"] = model
        if optimizer is not None:
            given["optimizer"] = optimizer
        super().__init__(codec=codec, context=context, **given, **values)

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, torch.nn.Module):
            for key, tensor in value.state_dict(keep_vars=True).items():
                if isinstance(tensor, torch.Tensor) and tensor.is_contiguous():
                    self.add_array(f"{name}.{key}", tensor)
                elif isinstance(tensor, torch.Tensor):
                    self.add_object(f"{name}.{key}", tensor.detach, partial(_fill, tensor), self._codec)
                else:
                    prefix, _, last = key.rpartition(".")
                    owner = value.get_submodule(prefix)
                    if last == "_extra_state":
                        self.add_object(f"{name}.{key}", owner.get_extra_state, owner.set_extra_state, self._codec)
            self._fix(name, value)
        elif isinstance(value, torch.optim.Optimizer):
            self.add_object(name, value.state_dict, lambda new: _load_optimizer(value, new), self._codec)
            self._fix(name, value)
        elif isinstance(value, ElasticSampler):
            super()._add(name, value)
        elif isinstance(value, torch.Tensor):
            self.add_array(name, value)
            self._fix(name, value)
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            self.add_object(name, value.state_dict, value.load_state_dict, self._codec)
            self._fix(name, value)
        else:
            super()._add(name, value)


def _fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(values)


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    optimizer.load_state_dict(state)
    if isinstance(optimizer, _Distributed):
        optimizer._hvd.forget()


__all__ = ["ArrayState", "ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State",
           "TorchState", "run"]

"""Elastic training in Horovod's words: run, states, sampler, and the two exceptions that make the loop go
round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import HorovodInternalError, HostsUpdatedInterrupt
from .attributes import ArrayState, ObjectState
from .leaving import leave_on_signal
from .loop import run
from .sampler import ElasticSampler
from .shards import Shard, shard_range
from .state import State

if TYPE_CHECKING:
    from ..torch.elastic import TorchState

__all__ = [
    "ArrayState", "ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "Shard",
    "State", "TorchState", "leave_on_signal", "run", "shard_range"
]


def __getattr__(name: str) -> Any:
    if name == "TorchState":  # PyTorch is loaded when it is asked for
        from ..torch.elastic import TorchState

        return TorchState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

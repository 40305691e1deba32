"""Parameters, optimizers and objects from one rank to all."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import torch

from .. import _default as plain
from ..codec import CodecLike

broadcast_object = plain.broadcast_object
allgather_object = plain.allgather_object


def broadcast_parameters(params: Mapping[str, Any] | Iterable[tuple[str, Any]], root_rank: int = 0,
                         process_set: Any = None) -> None:
    """model.state_dict() or model.named_parameters(): the root's values into every rank's tensors, as one operation."""
    items = sorted(params.items() if isinstance(params, Mapping) else params, key=lambda item: item[0])
    tensors = [value.data for _, value in items if isinstance(value, torch.Tensor)]
    dense = [tensor.contiguous() for tensor in tensors]
    if dense:
        plain.broadcast_variables(dense, root_rank, "broadcast_parameters", process_set=process_set)
    for tensor, copy in zip(tensors, dense):
        if copy is not tensor and copy.data_ptr() != tensor.data_ptr():
            tensor.copy_(copy)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, codec: CodecLike | None = None) -> None:
    """The root's state_dict() into every rank's optimizer, also where it has no state yet."""
    mine = optimizer.state_dict() if plain.rank() == root_rank else None
    state = plain.broadcast_object(mine, root_rank, "broadcast_optimizer_state", codec)
    if plain.rank() != root_rank:
        optimizer.load_state_dict(state)

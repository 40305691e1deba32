"""Parameters, optimizers and objects from one rank to all."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import torch

from .. import _default as plain
from ..codec import CodecLike
from ..errors import InvalidError


def in_host_memory(thing: Any) -> Any:
    """The same containers with their tensors in the host's memory, those that are there as they are. What
    differs from rank to rank, as the number of its GPU does, is no part of a state that ranks compare."""
    if isinstance(thing, torch.Tensor):
        return thing if thing.is_cpu else thing.detach().cpu()
    if type(thing) is dict:
        return {key: in_host_memory(item) for key, item in thing.items()}
    if type(thing) in (list, tuple):
        return type(thing)(in_host_memory(item) for item in thing)
    return thing


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Its state_dict() in the host's memory, but for state of no parameter, whose place it alone knows."""
    whole = optimizer.state_dict()
    if not _is_usual(whole):
        return whole
    return {
        **whole, "state": {
            key: in_host_memory(held) if isinstance(key, int) else held
            for key, held in whole["state"].items()
        }, "param_groups": in_host_memory(whole["param_groups"])
    }


def _is_usual(whole: dict[str, Any]) -> bool:
    """And not one of an optimizer that has its own form."""
    return isinstance(whole.get("state"), dict) and isinstance(whole.get("param_groups"), list)


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """PyTorch places what belongs to a parameter where that is, but no tensor of a group: a learning rate."""
    if not _is_usual(state):
        optimizer.load_state_dict(state)
        return
    groups = [{
        key: item.to(now[key].device) if isinstance(item, torch.Tensor) and isinstance(
            now.get(key), torch.Tensor) else item
        for key, item in group.items()
    } for group, now in zip(state["param_groups"], optimizer.param_groups)]
    groups += state["param_groups"][len(groups):]  # of which PyTorch says what is wrong
    optimizer.load_state_dict({**state, "param_groups": groups})


def broadcast_object(obj: Any = None, root_rank: int = 0, name: str | None = None, process_set: Any = None,
                     codec: CodecLike | None = None) -> Any:
    """The root's object on every rank."""
    return plain.broadcast_object(obj, root_rank, name, codec, process_set=process_set)


def allgather_object(obj: Any, name: str | None = None, process_set: Any = None,
                     codec: CodecLike | None = None) -> list[Any]:
    """Every rank's object, in rank order."""
    return plain.allgather_object(obj, name, codec, process_set=process_set)


def broadcast_parameters(params: Mapping[str, Any] | Iterable[Any], root_rank: int = 0,
                         process_set: Any = None) -> None:
    """model.state_dict(), named_parameters() or parameters(): the root's values into every rank's tensors, as
    one operation."""
    if isinstance(params, Mapping):
        items = sorted(params.items())
    elif isinstance(params, Iterable):
        items = [item if isinstance(item, tuple) else ("", item) for item in params]
        if all(name for name, _ in items):
            items.sort(key=lambda item: item[0])
    else:
        raise InvalidError(
            f"params: expected model.state_dict() or named_parameters(), and not {type(params).__name__}")
    tensors = [value.data for _, value in items if isinstance(value, torch.Tensor)]
    dense = [tensor.contiguous() for tensor in tensors]
    if dense:
        plain.broadcast_variables(dense, root_rank, "broadcast_parameters", process_set=process_set)
    for tensor, copy in zip(tensors, dense):
        if copy is not tensor and copy.data_ptr() != tensor.data_ptr():
            tensor.copy_(copy)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, model: Any = None,
                              codec: CodecLike | None = None) -> None:
    """The root's state_dict() into every rank's optimizer, also where it has no state yet. `model` is
    Horovod's.

    As in Horovod, parameters that have no gradient yet get one of zeros.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidError(
            "broadcast_optimizer_state: LBFGS keeps closures and histories of its own: it can't be sent")
    mine = optimizer_state(optimizer) if plain.rank() == root_rank else None
    state = plain.broadcast_object(mine, root_rank, "broadcast_optimizer_state", codec)
    if plain.rank() != root_rank:
        load_optimizer_state(optimizer, state)
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)

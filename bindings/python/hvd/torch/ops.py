"""The collectives with horovod.torch's parameters, and gradients through those that compute."""

from __future__ import annotations

from typing import Any, Sequence

import torch

from .. import _default as plain
from ..collectives import Average, Reduction, Sum
from ..errors import InvalidError
from ..handle import Handle


def _operation(average: bool | None, op: Reduction | None) -> Reduction:
    """Horovod's old parameter `average` beside the newer `op`."""
    if average is not None and op is not None:
        raise InvalidError("give op or average, and not both")
    if op is not None:
        return op
    return Average if average is None or average else Sum


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, op, prescale, postscale, process_set):
        ctx.call = (name, op, prescale, postscale, process_set)
        return plain.allreduce(tensor.contiguous(), name, op, prescale_factor=prescale, postscale_factor=postscale,
                               process_set=process_set)

    @staticmethod
    def backward(ctx, gradient):
        name, op, prescale, postscale, process_set = ctx.call
        if op not in (Sum, Average):
            raise InvalidError(f"allreduce with {op.name} has no gradient")
        result = plain.allreduce(gradient.contiguous(), f"{name}.gradient" if name else None, op,
                                 prescale_factor=prescale, postscale_factor=postscale, process_set=process_set)
        return result, None, None, None, None, None


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, name, process_set):
        ctx.call = (name, process_set, tensor.shape[0])
        return plain.allgather(tensor.contiguous(), name, process_set=process_set)

    @staticmethod
    def backward(ctx, gradient):
        name, process_set, rows = ctx.call
        shares = plain.allgather(torch.tensor([rows]), f"{name}.rows" if name else None, process_set=process_set)
        result = plain.reducescatter(gradient.contiguous(), f"{name}.gradient" if name else None, Sum,
                                     splits=shares.tolist(), process_set=process_set)
        return result, None, None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.call = (root_rank, name, process_set)
        return plain.broadcast(tensor.contiguous(), root_rank, name, process_set=process_set)

    @staticmethod
    def backward(ctx, gradient):
        root_rank, name, process_set = ctx.call
        result = plain.allreduce(gradient.contiguous(), f"{name}.gradient" if name else None, Sum,
                                 process_set=process_set)
        return result if plain.rank() == root_rank else result * 0, None, None, None


def _wants_gradient(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, compression: Any = None,
              op: Reduction | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: Any = None) -> torch.Tensor:
    """A new tensor; differentiable for Sum and Average."""
    operation = _operation(average, op)
    packed, context = (tensor, None) if compression is None else compression.compress(tensor)
    if _wants_gradient(packed):
        result = _Allreduce.apply(packed, name, operation, prescale_factor, postscale_factor, process_set)
    else:
        result = plain.allreduce(packed.detach(), name, operation, prescale_factor=prescale_factor,
                                 postscale_factor=postscale_factor, process_set=process_set)
    return result if compression is None else compression.decompress(result, context)


def allreduce_async(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                    op: Reduction | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: Any = None) -> Handle:
    return plain.allreduce_async(tensor.detach(), name, _operation(average, op), prescale_factor=prescale_factor,
                                 postscale_factor=postscale_factor, process_set=process_set)


def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                     op: Reduction | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: Any = None) -> Handle:
    return plain.allreduce_async(tensor, name, _operation(average, op), out=tensor, prescale_factor=prescale_factor,
                                 postscale_factor=postscale_factor, process_set=process_set)


def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
               op: Reduction | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: Any = None) -> torch.Tensor:
    return allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                            op: Reduction | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: Any = None) -> Handle:
    return plain.grouped_allreduce_async([tensor.detach() for tensor in tensors], name, _operation(average, op),
                                         prescale_factor=prescale_factor, postscale_factor=postscale_factor,
                                         process_set=process_set)


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                      op: Reduction | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: Any = None) -> list[torch.Tensor]:
    return grouped_allreduce_async(tensors, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                             op: Reduction | None = None, prescale_factor: float = 1.0,
                             postscale_factor: float = 1.0, process_set: Any = None) -> Handle:
    return plain.grouped_allreduce_async(tensors, name, _operation(average, op), out=tensors,
                                         prescale_factor=prescale_factor, postscale_factor=postscale_factor,
                                         process_set=process_set)


def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                       op: Reduction | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: Any = None) -> list[torch.Tensor]:
    return grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set).wait()


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """All ranks' rows; differentiable."""
    if _wants_gradient(tensor):
        return _Allgather.apply(tensor, name, process_set)
    return plain.allgather(tensor, name, process_set=process_set)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """The root's tensor; differentiable."""
    if _wants_gradient(tensor):
        return _Broadcast.apply(tensor, root_rank, name, process_set)
    return plain.broadcast(tensor, root_rank, name, process_set=process_set)


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None,
                      process_set: Any = None) -> list[torch.Tensor]:
    return plain.grouped_allgather(tensors, name, process_set=process_set)


def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None, process_set: Any = None) -> Any:
    """With splits: (rows received, how many from each rank)."""
    return alltoall_async(tensor, splits, name, process_set).wait()


def alltoall_async(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
                   process_set: Any = None) -> Handle:
    rows = splits.tolist() if isinstance(splits, torch.Tensor) else splits
    return plain.alltoall_async(tensor, rows, name, process_set=process_set)


def reducescatter_async(tensor: torch.Tensor, name: str | None = None, op: Reduction = Average,
                        process_set: Any = None, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> Handle:
    return plain.reducescatter_async(tensor, name, op, process_set=process_set, prescale_factor=prescale_factor,
                                     postscale_factor=postscale_factor)


def reducescatter(tensor: torch.Tensor, name: str | None = None, op: Reduction = Average, process_set: Any = None,
                  prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> torch.Tensor:
    return reducescatter_async(tensor, name, op, process_set, prescale_factor, postscale_factor).wait()


def barrier(process_set: Any = None) -> None:
    plain.barrier(process_set=process_set)


allgather_async = plain.allgather_async
broadcast_async = plain.broadcast_async
broadcast_async_ = plain.broadcast_async_
broadcast_ = plain.broadcast_
grouped_allgather_async = plain.grouped_allgather_async
grouped_reducescatter = plain.grouped_reducescatter

"""The collectives with horovod.torch's parameters, and gradients through all that compute something.

Gradients are Horovod's: that of allgather and broadcast is the average over the ranks of what they have, so
that a loss which every rank computes alike, from the same gathered values, has the gradient of one.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from .. import _default as plain
from ..collectives import Average, Reduction, Sum
from ..errors import InvalidError
from ..handle import Finished, Handle
from ..process_set import global_process_set
from .compression import Compression


def _operation(average: bool | None, op: Reduction | None) -> Reduction:
    """Horovod's old parameter `average` beside the newer `op`."""
    if average is not None and op is not None:
        raise InvalidError("give op or average, and not both")
    if op is not None:
        return op
    return Average if average is None or average else Sum


def _plain(tensor: Any) -> torch.Tensor:
    """What the library can read: without a graph, and contiguous."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a PyTorch tensor, and not {type(tensor).__name__}")
    return tensor.detach().contiguous()


def _members(process_set: Any) -> Any:
    return global_process_set if process_set is None else process_set


def _backward_name(name: str | None) -> str | None:
    return None if name is None else f"{name}.gradient"


# Each function below is given `call`, the operation on plain tensors: the same with a gradient and without,
# as another rank may need none.


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, name, op, factors, process_set, *tensors):
        ctx.of = (name, op, factors, process_set)
        return tuple(call([_plain(t) for t in tensors]))

    @staticmethod
    def backward(ctx, *gradients):
        name, op, factors, process_set = ctx.of
        if op not in (Sum, Average):
            raise InvalidError(f"allreduce with {Reduction(op).name} has no gradient")
        results = grouped_allreduce(gradients, None, _backward_name(name), None, op, process_set=process_set,
                                    **factors)
        return None, None, None, None, None, *results


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, name, process_set, *tensors):
        results = tuple(call([_plain(t) for t in tensors]))
        ctx.of = (name, process_set, [t.shape[0] for t in tensors])
        return results

    @staticmethod
    def backward(ctx, *gradients):
        name, process_set, rows = ctx.of
        name = _backward_name(name)
        shares = plain.allgather(torch.tensor([rows], device="cpu"), name and f"{name}.rows",
                                 process_set=process_set)
        handles = [plain.reducescatter_async(_plain(gradient), name and f"{name}.{index}", Average,
                                             splits=shares[:, index].tolist(), process_set=process_set)
                   for index, gradient in enumerate(gradients)]
        return None, None, None, *[handle.wait() for handle in handles]


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.of = (root_rank, name, process_set)
        return plain.broadcast(_plain(tensor), root_rank, name, process_set=process_set)

    @staticmethod
    def backward(ctx, gradient):
        root_rank, name, process_set = ctx.of
        result = plain.allreduce(_plain(gradient), _backward_name(name), Average, process_set=process_set)
        return result if plain.rank() == root_rank else result * 0, None, None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        handle = plain.alltoall_async(_plain(tensor), splits, name, process_set=process_set)
        rows = handle.wait() if splits is None else handle.wait()[0]
        received = torch.tensor(handle.received_splits(), dtype=torch.int32, device="cpu")
        ctx.of = (received.tolist(), name, process_set)
        ctx.mark_non_differentiable(received)
        return rows, received

    @staticmethod
    def backward(ctx, gradient, _):
        received, name, process_set = ctx.of
        rows, _ = plain.alltoall(_plain(gradient), received, _backward_name(name), process_set=process_set)
        return rows, None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, name, op, factors, process_set, *tensors):
        ctx.of = (name, op, factors, process_set)
        return tuple(call([_plain(t) for t in tensors]))

    @staticmethod
    def backward(ctx, *gradients):
        name, op, factors, process_set = ctx.of
        if op not in (Sum, Average):
            raise InvalidError(f"reducescatter with {Reduction(op).name} has no gradient")
        scale = factors["prescale_factor"] * factors["postscale_factor"]
        if op == Sum:
            scale *= _members(process_set).size()
        results = grouped_allgather([gradient * scale for gradient in gradients], _backward_name(name),
                                    process_set)
        return None, None, None, None, None, *results


def _wants_gradient(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors)


def _with_gradient(function: Any, call: Any, tensors: Sequence[torch.Tensor], *of: Any) -> list[torch.Tensor]:
    if _wants_gradient(*tensors):
        return list(function.apply(call, *of, *tensors))
    return call([_plain(t) for t in tensors])


def _factors(prescale_factor: float, postscale_factor: float) -> dict[str, Any]:
    return {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}


def _compressed(tensors: Sequence[torch.Tensor], compression: Any, call: Any) -> list[torch.Tensor]:
    """call(tensors) with them compressed on the way there and restored on the way back."""
    pairs = [(compression or Compression.none).compress(tensor) for tensor in tensors]
    results = call([packed for packed, _ in pairs])
    return [(compression or Compression.none).decompress(result, context)
            for result, (_, context) in zip(results, pairs)]


# ---- allreduce ----

# The forms in place call the method that does the work. The functions between took 1 us, as much as two ranks
# need to exchange 8 bytes.


def allreduce_async(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                    op: Reduction | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: Any = None) -> Handle:
    return plain.allreduce_async(_plain(tensor), name, _operation(average, op), process_set=process_set,
                                 **_factors(prescale_factor, postscale_factor))


def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
              compression: Any = None, op: Reduction | None = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, process_set: Any = None) -> torch.Tensor:
    """A new tensor; differentiable for Sum and Average."""
    operation, factors = _operation(average, op), _factors(prescale_factor, postscale_factor)

    def call(tensors):
        return [plain.allreduce(tensors[0], name, operation, process_set=process_set, **factors)]

    return _compressed([tensor], compression, lambda packed: _with_gradient(
        _Allreduce, call, packed, name, operation, factors, process_set))[0]


def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
                     op: Reduction | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: Any = None) -> Handle:
    return plain.context()._allreduce(
        False, tensor, name, _operation(average, op), tensor, prescale_factor, postscale_factor, process_set)


def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None,
               op: Reduction | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: Any = None) -> torch.Tensor:
    return plain.context()._allreduce(
        True, tensor, name, _operation(average, op), tensor, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: bool | None = None,
                            name: str | None = None, op: Reduction | None = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: Any = None) -> Handle:
    return plain.grouped_allreduce_async([_plain(t) for t in tensors], name,
                                         _operation(average, op), process_set=process_set,
                                         **_factors(prescale_factor, postscale_factor))


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                      compression: Any = None, op: Reduction | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: Any = None) -> list[torch.Tensor]:
    """New tensors, as one operation; differentiable for Sum and Average."""
    operation, factors = _operation(average, op), _factors(prescale_factor, postscale_factor)

    def call(tensors):
        return plain.grouped_allreduce(tensors, name, operation, process_set=process_set, **factors)

    return _compressed(tensors, compression, lambda packed: _with_gradient(
        _Allreduce, call, packed, name, operation, factors, process_set))


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: bool | None = None,
                             name: str | None = None, op: Reduction | None = None,
                             prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: Any = None) -> Handle:
    return plain.context()._grouped_allreduce(
        False, tensors, name, _operation(average, op), tensors, prescale_factor, postscale_factor,
        process_set)


def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: bool | None = None, name: str | None = None,
                       op: Reduction | None = None, prescale_factor: float = 1.0,
                       postscale_factor: float = 1.0, process_set: Any = None) -> list[torch.Tensor]:
    return plain.context()._grouped_allreduce(
        True, tensors, name, _operation(average, op), tensors, prescale_factor, postscale_factor, process_set)


def sparse_allreduce_async(tensor: torch.Tensor, name: str | None = None, op: Reduction = Average,
                           process_set: Any = None) -> Finished:
    """Of a sparse COO tensor: the ranks' entries one after the other, not coalesced; for Average divided by
    their number.

    The handle's result, and what calling the handle gives, is a sparse tensor of the same shape.
    """
    if not (isinstance(tensor, torch.Tensor) and tensor.layout == torch.sparse_coo):
        raise TypeError(f"sparse_allreduce: expected a sparse COO tensor, and not "
                        f"{getattr(tensor, 'layout', type(tensor).__name__)}")
    if op not in (Sum, Average):
        raise InvalidError(f"sparse_allreduce with {Reduction(op).name}: expected Sum or Average")
    entries = [_plain(tensor._indices().transpose(0, 1)), _plain(tensor._values())]
    handle = plain.grouped_allgather_async(entries, name, process_set=process_set)

    def finish(results: list[torch.Tensor]) -> torch.Tensor:
        indices, values = results
        if op == Average:
            values = values / _members(process_set).size()
        return sparse_tensor(indices.transpose(0, 1), values.to(tensor.dtype), tensor.shape)

    return Finished(handle, finish)


def sparse_tensor(indices: torch.Tensor, values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Indices came from other ranks: checked, where PyTorch (from 2.0 on) can."""
    checked = {"check_invariants": True} if hasattr(torch.sparse, "check_sparse_tensor_invariants") else {}
    return torch.sparse_coo_tensor(indices, values, shape, **checked)


# ---- allgather, broadcast ----

def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> Handle:
    return plain.allgather_async(_plain(tensor), name, process_set=process_set)


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """All ranks' rows; differentiable."""
    def call(tensors):
        return [plain.allgather(tensors[0], name, process_set=process_set)]

    return _with_gradient(_Allgather, call, [tensor], name, process_set)[0]


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: str | None = None,
                            process_set: Any = None) -> Handle:
    return plain.grouped_allgather_async([_plain(t) for t in tensors], name, process_set=process_set)


def grouped_allgather(tensors: Sequence[torch.Tensor], name: str | None = None,
                      process_set: Any = None) -> list[torch.Tensor]:
    """Of each tensor all ranks' rows, as one operation; differentiable."""
    def call(tensors):
        return plain.grouped_allgather(tensors, name, process_set=process_set)

    return _with_gradient(_Allgather, call, tensors, name, process_set)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                    process_set: Any = None) -> Handle:
    return plain.broadcast_async(_plain(tensor), root_rank, name, process_set=process_set)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None,
              process_set: Any = None) -> torch.Tensor:
    """The root's tensor; differentiable."""
    if _wants_gradient(tensor):
        return _Broadcast.apply(tensor, root_rank, name, process_set)
    return plain.broadcast(_plain(tensor), root_rank, name, process_set=process_set)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                     process_set: Any = None) -> Handle:
    return plain.broadcast_async_(tensor, root_rank, name, process_set=process_set)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
               process_set: Any = None) -> torch.Tensor:
    return plain.broadcast_(tensor, root_rank, name, process_set=process_set)


# ---- alltoall, reducescatter ----

def _rows(splits: Any) -> list[int] | None:
    if splits is None:
        return None
    if isinstance(splits, torch.Tensor):
        if splits.is_floating_point() or splits.is_complex() or splits.dtype == torch.bool:
            raise InvalidError(f"splits: expected whole numbers, and not {splits.dtype}")
        if splits.dim() != 1:
            raise InvalidError(f"splits: expected one dimension, and not shape {tuple(splits.shape)}")
        return splits.tolist()
    return list(splits)


def alltoall_async(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
                   process_set: Any = None) -> Finished:
    """splits[i] rows go to rank i. The handle's result is (rows received, how many from each rank: int32)."""
    handle = plain.alltoall_async(_plain(tensor), _rows(splits), name, process_set=process_set)

    def finish(result: Any) -> Any:
        received = torch.tensor(handle.received_splits(), dtype=torch.int32, device="cpu")
        return (result if splits is None else result[0]), received

    return Finished(handle, finish)


def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
             process_set: Any = None) -> Any:
    """With splits: (rows received, how many from each rank: int32), else the rows; differentiable."""
    if _wants_gradient(tensor):
        result = _Alltoall.apply(tensor, _rows(splits), name, process_set)
    else:
        result = alltoall_async(tensor, splits, name, process_set).wait()
    return result[0] if splits is None else result


def reducescatter_async(tensor: torch.Tensor, name: str | None = None, op: Reduction = Average,
                        process_set: Any = None, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> Handle:
    return plain.reducescatter_async(_plain(tensor), name, op, process_set=process_set,
                                     **_factors(prescale_factor, postscale_factor))


def reducescatter(tensor: torch.Tensor, name: str | None = None, compression: Any = None,
                  op: Reduction = Average, process_set: Any = None, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """This rank's share of the rows of the reduction; differentiable for Sum and Average."""
    factors = _factors(prescale_factor, postscale_factor)

    def call(tensors):
        return [plain.reducescatter(tensors[0], name, op, process_set=process_set, **factors)]

    return _compressed([tensor], compression, lambda packed: _with_gradient(
        _Reducescatter, call, packed, name, op, factors, process_set))[0]


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], name: str | None = None,
                                op: Reduction = Average, process_set: Any = None,
                                prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> Finished:
    return plain.grouped_reducescatter_async([_plain(t) for t in tensors], name, op, process_set=process_set,
                                             **_factors(prescale_factor, postscale_factor))


def grouped_reducescatter(tensors: Sequence[torch.Tensor], name: str | None = None, compression: Any = None,
                          op: Reduction = Average, process_set: Any = None, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> list[torch.Tensor]:
    factors = _factors(prescale_factor, postscale_factor)

    def call(tensors):
        return plain.grouped_reducescatter(tensors, name, op, process_set=process_set, **factors)

    return _compressed(tensors, compression, lambda packed: _with_gradient(
        _Reducescatter, call, packed, name, op, factors, process_set))


# ---- barrier, join ----

def barrier(process_set: Any = None) -> None:
    plain.barrier(process_set=process_set)


def join(device: Any = -1) -> int:
    """hvd.join. `device` is Horovod's, of the zeros that this rank would give; here they are the library's
    own."""
    if not isinstance(device, (int, str, torch.device)):
        raise TypeError(f"join: device is a {type(device).__name__}: expected a device's number")
    return plain.join()

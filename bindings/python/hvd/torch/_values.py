"""Tensors of any layout and dtype as flat ones that the library takes, and back."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
import torch.distributed as dist

from ..collectives import Average, Max, Min, Product, Reduction, Sum
from ..errors import InvalidError, UnsupportedError
from ..tensors import CODES

_KNOWN = frozenset(getattr(torch, name) for name in CODES if hasattr(torch, name))
_PARTS = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_REDUCTIONS = {"SUM": Sum, "AVG": Average, "PRODUCT": Product, "MIN": Min, "MAX": Max}
_OF_BOOLS = {"SUM": Max, "MAX": Max, "BOR": Max, "PRODUCT": Min, "MIN": Min, "BAND": Min}  # 0 and 1 as bytes
_BITWISE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
_NAMES = (*_REDUCTIONS, *_BITWISE, "PREMUL_SUM")
_BY_OP = [(getattr(dist.ReduceOp, name), name) for name in _NAMES if hasattr(dist.ReduceOp, name)]


def one(tensors: Sequence[Any], what: str) -> Any:
    if len(tensors) != 1:
        raise InvalidError(f"{what}: {len(tensors)} tensors: expected 1, as each rank has one device")
    return tensors[0]


def flat(tensor: torch.Tensor, reduced: bool = False) -> torch.Tensor:
    """Its elements in one dimension: its own memory if it is contiguous, else a copy. Of complex numbers the
    parts; what is only moved is bytes if the library does not know its dtype."""
    if tensor.layout != torch.strided:
        raise UnsupportedError(
            f"backend hvd: a tensor of layout {tensor.layout}: expected a dense one (all_reduce with SUM "
            "takes sparse ones)")
    if tensor.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"backend hvd: a tensor on {tensor.device}: expected one in host memory or on a CUDA device")
    rows = tensor.detach().resolve_conj().contiguous().view(-1)
    if tensor.dtype in _PARTS:
        return rows.view(_PARTS[tensor.dtype])
    if reduced and tensor.dtype is torch.bool or not reduced and tensor.dtype not in _KNOWN:
        return rows.view(torch.uint8)
    return rows


def apart(sent: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """What is sent, as a copy if it lies in the memory that is received into (FSDP gathers in place)."""
    begin, other = sent.data_ptr(), room.data_ptr()
    overlap = begin < other + room.numel() * room.element_size() and other < begin + sent.numel(
    ) * sent.element_size()
    return sent.clone() if overlap else sent


def hosted(rows: torch.Tensor) -> torch.Tensor:
    """Flat values in host memory, for operations that no backend has for a device's: themselves, or a copy.
    """
    return rows.cpu() if rows.is_cuda else rows


def room_of(tensor: torch.Tensor) -> torch.Tensor:
    """Flat memory of the host's for what comes for it: its own, or, if it lies elsewhere, new one."""
    rows = flat(tensor)
    return torch.empty(rows.numel(), dtype=rows.dtype, device="cpu") if rows.is_cuda else rows


def rows_of(like: torch.Tensor, count: int) -> torch.Tensor | None:
    """Memory for so many elements where this one is; None for the host's, which the library finds itself."""
    return like.new_empty(count) if like.is_cuda else None


def put(target: torch.Tensor, values: torch.Tensor) -> None:
    """Flat values into a tensor; nothing if they are its own memory."""
    if values.data_ptr() == target.data_ptr() and target.is_contiguous():
        return
    with torch.no_grad():
        target.copy_(values.view(target.dtype).view(target.shape))


class Op:
    """A ReduceOp for tensors of one dtype: `reduction` and `prescale` for the library, or `fold` where it has
    none."""

    def __init__(self, op: Any, tensor: torch.Tensor):
        name = next((ours for theirs, ours in _BY_OP if op == theirs), None)
        self.prescale = 1.0
        self.fold: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
        self.reduction: Reduction = Sum
        kind = tensor.dtype
        if kind is torch.bool and name in _OF_BOOLS:
            self.reduction = _OF_BOOLS[name]
        elif name in _BITWISE and not (kind.is_floating_point or kind.is_complex):
            self.fold = _BITWISE[name]
        elif name == "PREMUL_SUM":
            factor = op.__getstate__()[1]
            if not isinstance(factor, (int, float)):
                raise UnsupportedError(
                    f"backend hvd: PREMUL_SUM by a {type(factor).__name__}: expected a number")
            self.prescale = float(factor)
        elif name in _REDUCTIONS and kind is not torch.bool and not (kind.is_complex and
                                                                     name not in ("SUM", "AVG")):
            self.reduction = _REDUCTIONS[name]
        else:
            raise UnsupportedError(
                f"backend hvd has no reduction {name or op} of {kind}: expected SUM, AVG, PRODUCT, MIN, MAX "
                "or PREMUL_SUM of numbers; BAND, BOR or BXOR of integers or bools; SUM or AVG of complex ones"
            )

    def folded(self, rows: torch.Tensor, size: int) -> torch.Tensor:
        """The ranks' rows, one after the other, reduced."""
        assert self.fold is not None
        first, *others = rows.view(size, -1).unbind()
        result = first.clone()
        for row in others:
            result = self.fold(result, row)
        return result

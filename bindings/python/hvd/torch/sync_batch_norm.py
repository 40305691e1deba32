"""SyncBatchNorm: batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from .. import _default as plain
from ..collectives import Sum
from ..errors import InvalidError


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d, 2d and 3d whose mean and variance in training are those of all ranks' batches
    together.

    Input [N, C, ...] of any floating dtype; N may differ among ranks, and be 0 on some. Gradients of weight
    and bias are this rank's share: DistributedOptimizer reduces them. All ranks (of process_set) call it in
    the same order, in the forward and in the backward pass.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
                 affine: bool = True, track_running_stats: bool = True, process_set: Any = None):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise InvalidError(f"SyncBatchNorm: expected input of at least 2 dimensions, and not of shape "
                               f"{tuple(input.shape)}")
        if input.shape[1] != self.num_features:
            raise InvalidError(
                f"SyncBatchNorm: expected {self.num_features} channels, and not {input.shape[1]}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not (self.training or not self.track_running_stats):
            return functional.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias,
                                         False, 0.0, self.eps)
        momentum = self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        tracked = (self.running_mean, self.running_var) if self.training else (None, None)
        return _Normalize.apply(input, self.weight, self.bias, *tracked, self.eps, momentum, self.process_set)

    @classmethod
    def convert_sync_batchnorm(cls, module: torch.nn.Module, process_set: Any = None) -> torch.nn.Module:
        """The module with a SyncBatchNorm, which has the same parameters, in place of each BatchNorm within
        it."""
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            found = cls(module.num_features, module.eps, module.momentum, module.affine,
                        module.track_running_stats, process_set)
            found.training = module.training
            for name, parameter in module.named_parameters(recurse=False):
                setattr(found, name, parameter)
            for name, buffer in module.named_buffers(recurse=False):
                setattr(found, name, buffer)
            return found
        for name, child in module.named_children():
            changed = cls.convert_sync_batchnorm(child, process_set)
            if changed is not child:
                module.add_module(name, changed)
        return module


def _of_channels(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, weight, bias, running_mean, running_var, eps, momentum, process_set):
        wide = torch.float64 if input.dtype == torch.float64 else torch.float32
        x = input.detach().to(wide)
        channels, others = x.shape[1], [d for d in range(x.dim()) if d != 1]
        count = x.numel() // channels if channels else 0
        mean = x.sum(others) / max(count, 1)
        squares = ((x - _of_channels(mean, x)) ** 2).sum(others)
        # The ranks' means and sums of squared differences are put together as by Chan, Golub and LeVeque
        # (1979).
        mine = torch.cat([torch.tensor([float(count)], dtype=wide, device=x.device), mean, squares])
        rows = plain.allgather(mine.unsqueeze(0), process_set=process_set)
        counts, means = rows[:, :1], rows[:, 1:channels + 1]
        total = counts.sum()
        if not total:
            raise InvalidError("SyncBatchNorm: no rank has a sample")
        mean = (counts * means).sum(0) / total
        squares = (rows[:, channels + 1:] + counts * (means - mean) ** 2).sum(0)
        variance = squares / total
        if running_mean is not None:
            if total <= 1:
                raise InvalidError(
                    "SyncBatchNorm: all ranks together have one value for each channel; expected more")
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((squares / (total - 1)).to(running_var.dtype), momentum)
        inverse = torch.rsqrt(variance + eps)
        normalized = (x - _of_channels(mean, x)) * _of_channels(inverse, x)
        ctx.save_for_backward(normalized, weight, inverse, total)
        ctx.process_set, ctx.has_bias = process_set, bias is not None
        if weight is not None:
            normalized = normalized * _of_channels(weight.to(wide), x)
        if bias is not None:
            normalized = normalized + _of_channels(bias.to(wide), x)
        return normalized.to(input.dtype)

    @staticmethod
    def backward(ctx, gradient):
        normalized, weight, inverse, total = ctx.saved_tensors
        dy = gradient.to(normalized.dtype)
        others = [d for d in range(dy.dim()) if d != 1]
        sums = torch.stack([dy.sum(others), (dy * normalized).sum(others)])
        of_weight, of_bias = (sums[1] if weight is not None else None), (sums[0] if ctx.has_bias else None)
        dx = None
        if ctx.needs_input_grad[0]:
            means = plain.allreduce(sums, op=Sum, process_set=ctx.process_set) / total
            scale = inverse if weight is None else inverse * weight.to(dy.dtype)
            dx = (dy - _of_channels(means[0], dy) - normalized * _of_channels(means[1], dy)) * _of_channels(
                scale, dy)
            dx = dx.to(gradient.dtype)
        return (dx, None if of_weight is None else of_weight.to(weight.dtype),
                None if of_bias is None else of_bias.to(gradient.dtype if weight is None else weight.dtype),
                None, None, None, None, None)

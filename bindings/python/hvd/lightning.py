"""A strategy for Lightning's Trainer: Trainer(strategy=HvdStrategy()) in workers that hvdrun or another
driver starts.

For package lightning, or pytorch_lightning, from 2.0 on. Fixed jobs: the Trainer's loop is not restarted
within a process.
"""

from __future__ import annotations

from typing import Any, Callable

import torch

try:
    from lightning.fabric.plugins.environments import ClusterEnvironment
    from lightning.fabric.utilities.rank_zero import rank_zero_only
    from lightning.pytorch.strategies import ParallelStrategy
except ImportError:
    from lightning_fabric.plugins.environments import ClusterEnvironment
    from lightning_fabric.utilities.rank_zero import rank_zero_only
    from pytorch_lightning.strategies import ParallelStrategy

from . import _default as plain
from . import torch as of_torch
from .collectives import Average, Max, Min, Product, Reduction, Sum
from .errors import InvalidError

_REDUCTIONS = {"mean": Average, "avg": Average, "average": Average, "sum": Sum, "min": Min, "max": Max,
               "product": Product, "prod": Product}


def _reduction(wanted: Any) -> Reduction:
    """Of Lightning's words: a string, or torch.distributed's ReduceOp."""
    name = str(wanted).rpartition(".")[2].lower()
    if name not in _REDUCTIONS:
        raise InvalidError(f"reduce_op {wanted!r}: expected one of {', '.join(_REDUCTIONS)}")
    return _REDUCTIONS[name]


class HvdEnvironment(ClusterEnvironment):
    """This worker's place in its job, for Lightning."""

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return "127.0.0.1"  # nothing listens: the ranks know each other through hvd

    @property
    def main_port(self) -> int:
        return 0

    @staticmethod
    def detect() -> bool:
        import os

        return "HVD_DRIVER" in os.environ

    def world_size(self) -> int:
        return plain.size()

    def set_world_size(self, size: int) -> None:
        """It is the job's."""

    def global_rank(self) -> int:
        return plain.rank()

    def set_global_rank(self, rank: int) -> None:
        """It is the job's."""

    def local_rank(self) -> int:
        return plain.local_rank()

    def node_rank(self) -> int:
        return plain.cross_rank()


class HvdStrategy(ParallelStrategy):
    """Data-parallel training by hvd: gradients are averaged over the ranks after the last backward pass of a
    step.

    With accumulate_grad_batches each step reduces once. compression: of the gradients
    (hvd.torch.Compression). Every rank must have gradients for the same parameters in a step. On GPUs a
    worker takes device number local_rank of the Trainer's devices.
    """

    strategy_name = "hvd"

    def __init__(self, accelerator: Any = None, parallel_devices: Any = None, checkpoint_io: Any = None,
                 precision_plugin: Any = None, compression: Any = of_torch.Compression.none):
        plain.init()
        super().__init__(accelerator=accelerator, parallel_devices=parallel_devices,
                         cluster_environment=HvdEnvironment(), checkpoint_io=checkpoint_io,
                         precision_plugin=precision_plugin)
        self.compression = compression
        rank_zero_only.rank = plain.rank()

    is_distributed = True  # so that the Trainer gives each rank its part of the data

    @property
    def root_device(self) -> torch.device:
        devices = self.parallel_devices or [torch.device("cpu")]
        return devices[self.local_rank if self.local_rank < len(devices) else 0]

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}

    def model_to_device(self) -> None:
        assert self.model is not None
        self.model.to(self.root_device)

    def setup_environment(self) -> None:
        super().setup_environment()
        rank_zero_only.rank = self.global_rank

    def setup(self, trainer: Any) -> None:
        super().setup(trainer)
        assert self.model is not None
        of_torch.broadcast_parameters(self.model.state_dict(), 0)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None,
                       **options: Any) -> Any:
        def reduced() -> Any:
            result = closure()
            self._reduce(getattr(optimizer, "_optimizer", optimizer))
            return result

        return super().optimizer_step(optimizer, reduced, model, **options)

    def _reduce(self, optimizer: torch.optim.Optimizer) -> None:
        held = [(i, p) for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])
                if p.grad is not None]
        if not held:
            return
        packed = [self.compression.compress(p.grad.detach().to_dense().contiguous() if p.grad.is_sparse
                                            else p.grad.detach().contiguous()) for _, p in held]
        tensors = [tensor for tensor, _ in packed]
        plain.grouped_allreduce_(tensors, f"lightning.gradients.{held[0][0]}.{len(held)}", Average)
        for (_, p), tensor, (_, context) in zip(held, tensors, packed):
            result = self.compression.decompress(tensor, context)
            if p.grad.is_sparse or result.data_ptr() != p.grad.data_ptr():
                p.grad = result

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Numbers and tensors; what is neither stays as it is."""
        operation = _reduction("mean" if reduce_op is None else reduce_op)
        if isinstance(tensor, (int, float)):
            return type(tensor)(plain.allreduce(
                torch.tensor([float(tensor)], dtype=torch.float64, device="cpu"), op=operation).item())
        if not isinstance(tensor, torch.Tensor):
            return tensor
        return of_torch.allreduce(tensor.reshape(-1), op=operation).reshape(tensor.shape)

    def barrier(self, name: str | None = None) -> None:
        plain.barrier()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Objects by the program's codec (hvd.set_codec)."""
        return plain.broadcast_object(obj, src)

    def all_gather(self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False) -> torch.Tensor:
        """[size, ...]: each rank's tensor."""
        with torch.set_grad_enabled(sync_grads and torch.is_grad_enabled()):
            return of_torch.allgather(tensor.unsqueeze(0))


__all__ = ["HvdEnvironment", "HvdStrategy"]

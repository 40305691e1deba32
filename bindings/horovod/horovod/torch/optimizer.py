"""DistributedOptimizer."""

from hvd.torch.optimizer import DistributedOptimizer  # noqa: F401

"""TorchState."""

from hvd.torch.elastic import TorchState  # noqa: F401

"""What travels in fewer bits."""

from hvd.torch.compression import Compression  # noqa: F401

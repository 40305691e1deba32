"""SyncBatchNorm."""

from hvd.torch import SyncBatchNorm  # noqa: F401

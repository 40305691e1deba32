"""SyncBatchNormalization."""

from hvd.tensorflow import SyncBatchNormalization  # noqa: F401

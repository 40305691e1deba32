"""What travels in fewer bits."""

from hvd.tensorflow import Compression  # noqa: F401

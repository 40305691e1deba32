"""What travels in fewer bits."""

from hvd.torch.compression import Compression, Compressor, FP16Compressor, NoneCompressor  # noqa: F401

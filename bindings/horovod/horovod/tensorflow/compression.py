"""What travels in fewer bits."""

from hvd.tensorflow.compression import Compression, Compressor, FP16Compressor, NoneCompressor  # noqa: F401

"""Gradients in half precision on their way."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ..compression import Compressor


class NoneCompressor(Compressor):
    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """Floating-point tensors travel as float16, and come back in their own dtype."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        if not tensor.dtype.is_floating or tensor.dtype == tf.float16:
            return tensor, None
        return tf.cast(tensor, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class Compression:
    """As horovod.tensorflow.Compression: none, or fp16."""

    none = NoneCompressor
    fp16 = FP16Compressor

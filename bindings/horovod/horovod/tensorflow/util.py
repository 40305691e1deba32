"""Small questions to TensorFlow."""

import tensorflow as tf


def _executing_eagerly() -> bool:
    return tf.executing_eagerly()

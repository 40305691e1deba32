"""horovod.tensorflow: hvd.tensorflow."""

from hvd.tensorflow import *  # noqa: F401,F403

from . import elastic  # noqa: F401
from .util import _executing_eagerly  # noqa: F401


def __getattr__(name):
    import hvd.tensorflow

    return getattr(hvd.tensorflow, name)

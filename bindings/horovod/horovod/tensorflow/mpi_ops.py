"""The operations of horovod.tensorflow."""

from hvd.tensorflow import *  # noqa: F401,F403

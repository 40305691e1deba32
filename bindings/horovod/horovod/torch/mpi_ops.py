"""The operations of horovod.torch."""

from hvd.torch import *  # noqa: F401,F403

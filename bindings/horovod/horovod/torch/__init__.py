"""horovod.torch: hvd.torch."""

from hvd.torch import *  # noqa: F401,F403

from . import elastic  # noqa: F401

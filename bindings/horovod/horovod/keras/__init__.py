"""horovod.keras: hvd.keras."""

from hvd.keras import *  # noqa: F401,F403

from . import callbacks, elastic  # noqa: F401


def __getattr__(name):
    import hvd.keras

    return getattr(hvd.keras, name)

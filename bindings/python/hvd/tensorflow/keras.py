"""horovod.tensorflow.keras by its name: what hvd.keras has."""

from __future__ import annotations

from ..keras import *  # noqa: F401,F403
from ..keras import __all__, callbacks, elastic  # noqa: F401

"""hvd.keras.elastic."""

from hvd.keras.elastic import *  # noqa: F401,F403

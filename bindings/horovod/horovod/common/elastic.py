"""States and the run loop."""

from hvd.elastic import ObjectState, State, run  # noqa: F401

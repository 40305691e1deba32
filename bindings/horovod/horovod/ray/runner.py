"""RayExecutor."""

from hvd.ray import RayExecutor  # noqa: F401

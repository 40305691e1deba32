"""ElasticRayExecutor."""

from hvd.ray import ElasticRayExecutor  # noqa: F401

"""horovod.ray: hvd.ray."""

from hvd.ray import ElasticRayExecutor, RayExecutor

__all__ = ["ElasticRayExecutor", "RayExecutor"]

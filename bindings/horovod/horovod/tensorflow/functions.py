"""Variables and objects from one rank to all."""

from hvd.tensorflow import allgather_object, broadcast_object, broadcast_object_fn, broadcast_variables  # noqa: F401

"""Parameters, optimizers and objects from one rank to all."""

from hvd.torch.functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters  # noqa: F401

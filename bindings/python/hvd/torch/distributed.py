"""A backend of torch.distributed: `import hvd.torch.distributed` and dist.init_process_group("hvd", ...).

DDP, FSDP, DeviceMesh, new_group and object collectives then run over libhvd, on tensors in host memory. The
group's ranks are those of the context of hvd.init in its present generation: after a reset the group is to be
made anew (hvd.torch.elastic says when). Without hvd.init, as under torchrun, the ranks find each other by
torch's own store. docs/torch-distributed.md is the manual.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from .. import _default as plain
from ..errors import InvalidError
from ..process_set import ProcessSet
from ._group import HvdProcessGroup
from ._meeting import meet
from ._reconfigure import ReconfigurableProcessGroup, can_be_made
from ._work import HvdWork


def _create(about: Any, options: Any = None) -> HvdProcessGroup:
    """What torch.distributed calls for the default group and for each of new_group's."""
    if can_be_made(about):
        return ReconfigurableProcessGroup(about.group_rank, about.group_size, str(about.group_id),
                                          about.timeout)
    owns = not plain.is_initialized()
    if owns:
        meet(about.store, about.group_rank, about.group_size, about.timeout.total_seconds())
    members = None
    ranks = list(about.global_ranks_in_group or ())
    if ranks and ranks != list(range(plain.size())):
        if ranks != sorted(ranks):
            raise InvalidError(f"new_group({ranks}): expected the ranks ascending")
        members = plain.add_process_set(ProcessSet(ranks, name=f"torch {about.group_id}", rule="end"))
    elif not ranks and (about.group_rank, about.group_size) != (plain.rank(), plain.size()):
        raise InvalidError(
            f"rank {about.group_rank} of {about.group_size}: expected hvd.rank() and hvd.size(), "
            f"{plain.rank()} of {plain.size()}")
    return HvdProcessGroup(about.group_rank, about.group_size, str(about.group_id), members, about.timeout,
                           owns)


def init_process_group(**options: Any) -> None:
    """dist.init_process_group with backend "hvd" and the context's ranks; hvd.init() if it has not been
    called.

    The store is this process's own: nothing of the group goes through it.
    """
    plain.init()
    dist.init_process_group("hvd", store=dist.HashStore(), rank=plain.rank(), world_size=plain.size(),
                            **options)


if not hasattr(dist.Backend, "HVD"):
    dist.Backend.register_backend("hvd", _create, extended_api=True, devices=["cpu", "cuda"])

__all__ = ["HvdProcessGroup", "HvdWork", "init_process_group"]

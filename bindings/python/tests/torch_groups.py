"""The begin of jobs on torch.distributed's backend `hvd`. Skips the module that imports it where PyTorch
has no process groups in Python."""

import pytest

torch = pytest.importorskip("torch")
if not hasattr(torch.distributed, "_Work") or tuple(map(int, torch.__version__.split(".")[:2])) < (2, 2):
    pytest.skip("this PyTorch's process groups can't be made in Python", allow_module_level=True)

HEAD = """
import torch, torch.distributed as dist
import hvd, hvd.torch.distributed
hvd.torch.distributed.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
"""

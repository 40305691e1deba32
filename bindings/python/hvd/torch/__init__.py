"""hvd for PyTorch, in the shape of horovod.torch: `import hvd.torch as hvd` takes the place of its import."""

from __future__ import annotations

import torch  # noqa: F401: says clearly that PyTorch is missing

from .._default import (abort, add_process_set, backend, context, cross_rank, cross_size, events, generation,
                        init, is_initialized, local_rank, local_size, membership, poll, rank, recoveries,
                        register_listener, remove_listener, remove_process_set, shutdown, size,
                        start_timeline, stop_timeline, synchronize)
from .._horovod import (ccl_built, cuda_built, ddl_built, gloo_built, gloo_enabled, is_homogeneous, mpi_built,
                        mpi_enabled, mpi_threads_supported, nccl_built, rocm_built)
from ..codec import set_codec
from ..collectives import Adasum, Average, Max, Min, Product, Sum
from ..errors import (HorovodInternalError, HostsUpdatedInterrupt, HvdError, InvalidError, MismatchError,
                      RemovedError, WaitTimeoutError)
from ..handle import Handle
from ..process_set import ProcessSet, global_process_set
from .functions import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from .ops import (allgather, allgather_async, allreduce, allreduce_, allreduce_async, allreduce_async_,
                  alltoall, alltoall_async, barrier, broadcast, broadcast_, broadcast_async, broadcast_async_,
                  grouped_allgather, grouped_allgather_async, grouped_allreduce, grouped_allreduce_,
                  grouped_allreduce_async, grouped_allreduce_async_, grouped_reducescatter,
                  grouped_reducescatter_async, join, reducescatter, reducescatter_async,
                  sparse_allreduce_async)
from .compression import Compression
from .optimizer import DistributedOptimizer
from .sync_batch_norm import SyncBatchNorm
from . import elastic

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "Handle", "HorovodInternalError",
    "HostsUpdatedInterrupt", "HvdError", "InvalidError", "Max", "Min", "MismatchError", "ProcessSet",
    "Product", "RemovedError", "Sum", "SyncBatchNorm", "WaitTimeoutError", "abort", "add_process_set",
    "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "backend", "barrier", "broadcast", "broadcast_",
    "broadcast_async", "broadcast_async_", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "ccl_built", "compression", "context", "cross_rank", "cross_size", "cuda_built",
    "ddl_built", "elastic", "events", "functions", "generation", "global_process_set", "gloo_built",
    "gloo_enabled", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "init", "is_homogeneous", "is_initialized", "join", "local_rank",
    "local_size", "membership", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "ops",
    "optimizer", "poll", "rank", "recoveries", "reducescatter", "reducescatter_async", "register_listener",
    "remove_listener", "remove_process_set", "rocm_built", "set_codec", "shutdown", "size",
    "sparse_allreduce_async", "start_timeline", "stop_timeline", "sync_batch_norm", "synchronize"
]

"""hvd for TensorFlow, in the shape of horovod.tensorflow: `import hvd.tensorflow as hvd` takes the place of
its import."""

from __future__ import annotations

import tensorflow as _tensorflow  # noqa: F401: says clearly that TensorFlow is missing

from .._default import (abort, add_process_set, backend, context, cross_rank, cross_size, events, generation,
                        init, is_initialized, join, local_rank, local_size, membership, rank, recoveries,
                        register_listener, remove_listener, remove_process_set, shutdown, size,
                        start_timeline, stop_timeline)
from .._horovod import (ccl_built, check_num_rank_power_of_2, cuda_built, ddl_built, gloo_built, gloo_enabled,
                        is_homogeneous, mpi_built, mpi_enabled, mpi_threads_supported, nccl_built, rocm_built)
from ..collectives import Adasum, Average, Max, Min, Product, Sum
from ..errors import (HorovodInternalError, HostsUpdatedInterrupt, HvdError, InvalidError, MismatchError,
                      RemovedError, WaitTimeoutError)
from ..process_set import ProcessSet, global_process_set
from .compression import Compression
from .functions import (BroadcastGlobalVariablesHook, allgather_object, broadcast_,
                        broadcast_global_variables, broadcast_object, broadcast_object_fn,
                        broadcast_variables)
from .gradients import DistributedGradientTape, PartialDistributedGradientTape
from .ops import (allgather, allreduce, alltoall, barrier, broadcast, grouped_allgather, grouped_allreduce,
                  grouped_reducescatter, handle_average_backwards_compatibility, local_rank_op, local_size_op,
                  process_set_included_op, rank_op, reducescatter, size_op)
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer
from . import elastic

__all__ = [
    "Adasum", "Average", "BroadcastGlobalVariablesHook", "Compression", "DistributedGradientTape",
    "DistributedOptimizer", "HorovodInternalError", "HostsUpdatedInterrupt", "HvdError", "InvalidError",
    "Max", "Min", "MismatchError", "PartialDistributedGradientTape", "PartialDistributedOptimizer",
    "ProcessSet", "Product", "RemovedError", "Sum", "WaitTimeoutError", "abort", "add_process_set",
    "allgather", "allgather_object", "allreduce", "alltoall", "backend", "barrier", "broadcast",
    "broadcast_", "broadcast_global_variables", "broadcast_object", "broadcast_object_fn",
    "broadcast_variables", "ccl_built", "check_num_rank_power_of_2", "compression", "context", "cross_rank",
    "cross_size", "cuda_built", "ddl_built", "elastic", "events", "functions", "generation",
    "global_process_set", "gloo_built", "gloo_enabled", "gradients", "grouped_allgather",
    "grouped_allreduce", "grouped_reducescatter", "handle_average_backwards_compatibility", "init",
    "is_homogeneous", "is_initialized", "join", "local_rank", "local_rank_op", "local_size", "local_size_op",
    "membership", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "ops", "optimizer",
    "process_set_included_op", "rank", "rank_op", "recoveries", "reducescatter", "register_listener",
    "remove_listener", "remove_process_set", "rocm_built", "shutdown", "size", "size_op", "start_timeline",
    "stop_timeline"
]


def __getattr__(name):
    if name == "SyncBatchNormalization":  # Keras is loaded when it is asked for
        from .sync_batch_norm import SyncBatchNormalization

        return SyncBatchNormalization
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

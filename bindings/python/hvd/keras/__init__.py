"""hvd for Keras, in the shape of horovod.keras: `import hvd.keras as hvd` takes the place of its import.

Keras 3 on TensorFlow, PyTorch or JAX, and the Keras 2 of package tf_keras (TF_USE_LEGACY_KERAS=1).
"""

from __future__ import annotations

from .._default import (abort, add_process_set, allgather_object, barrier, broadcast_object, context,
                        cross_rank, cross_size, events, generation, init, is_initialized, join, local_rank,
                        local_size, membership, rank, recoveries, remove_process_set, shutdown, size,
                        start_timeline, stop_timeline)
from .._horovod import (ccl_built, cuda_built, ddl_built, gloo_built, gloo_enabled, is_homogeneous, mpi_built,
                        mpi_enabled, mpi_threads_supported, nccl_built, rocm_built)
from ..collectives import Adasum, Average, Max, Min, Product, Sum
from ..errors import (HorovodInternalError, HostsUpdatedInterrupt, HvdError, InvalidError, MismatchError,
                      RemovedError, WaitTimeoutError)
from ..process_set import ProcessSet, global_process_set
from .compression import Compression
from .functions import (allgather, allreduce, broadcast, broadcast_model, broadcast_variables, load_model,
                        reducescatter)
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer
from . import callbacks, elastic


def __getattr__(name):
    if name in ("SyncBatchNormalization",
                "broadcast_global_variables"):  # TensorFlow is loaded when it is asked for
        from .. import tensorflow

        return getattr(tensorflow, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "HorovodInternalError",
    "HostsUpdatedInterrupt", "HvdError", "InvalidError", "Max", "Min", "MismatchError",
    "PartialDistributedOptimizer", "ProcessSet", "Product", "RemovedError", "Sum", "WaitTimeoutError",
    "abort", "add_process_set", "allgather", "allgather_object", "allreduce", "barrier", "broadcast",
    "broadcast_model", "broadcast_object", "broadcast_variables", "callbacks", "ccl_built", "compression",
    "context", "cross_rank", "cross_size", "cuda_built", "ddl_built", "elastic", "events", "functions",
    "generation", "global_process_set", "gloo_built", "gloo_enabled", "init", "is_homogeneous",
    "is_initialized", "join", "load_model", "local_rank", "local_size", "membership", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "optimizer", "rank", "recoveries", "reducescatter",
    "remove_process_set", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline"
]

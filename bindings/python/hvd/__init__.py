"""libhvd for Python: elastic distributed training in the words of Horovod, over the C ABI of libhvd.so alone.

    import hvd
    hvd.init()
    total = hvd.allreduce(gradient, op=hvd.Sum)

docs/python.md is the manual; hvd.elastic has the run loop and states, hvd.torch what PyTorch needs,
hvd.driver the embedded driver.
"""

from ._abi import LIBRARY_PATH as library_path
from ._abi import lib as _lib
from ._default import (
    abort, add_process_set, allgather, allgather_async, allgather_object, allreduce, allreduce_,
    allreduce_async, allreduce_async_, alltoall, alltoall_async, backend, backend_choice, barrier,
    barrier_async, broadcast, broadcast_, broadcast_async, broadcast_async_, broadcast_object,
    broadcast_variables, broadcast_variables_async, context, cross_rank, cross_size, events, has_left, leave,
    gather, gather_async, gather_object, generation, grouped_allgather, grouped_allgather_async,
    grouped_allreduce, grouped_allreduce_, grouped_allreduce_async, grouped_allreduce_async_,
    grouped_reducescatter, grouped_reducescatter_async, init, is_initialized, join, join_async, local_rank,
    local_size, membership, poll, rank, receive, receive_async, recoveries, reduce, reduce_async,
    reducescatter, reducescatter_async, register_listener, remove_listener, remove_process_set, scatter,
    scatter_async, send, send_async, shutdown, size, start_timeline, stop_timeline, synchronize)
from ._horovod import (ccl_built, cuda_built, ddl_built, gloo_built, gloo_enabled, is_homogeneous, mpi_built,
                       mpi_enabled, mpi_threads_supported, nccl_built, rocm_built, run)
from ._library import LibraryError, hvdrun
from ._options import describe_options
from ._submit import calls as _calls
from .codec import Codec, JsonCodec, PickleCodec, set_codec
from .collectives import Adasum, Average, Max, Min, Product, Reduction, Sum
from .context import Context
from .errors import (CallbackError, ClosedError, DriverLostError, HorovodInternalError, HostsUpdatedInterrupt,
                     HvdError, InternalError, InvalidError, JobCompleteError, JobFailedError, MismatchError,
                     RefusedError, RemovedError, UnavailableError, UnsupportedError, WaitTimeoutError)
from .facts import (BackendChoice, BackendInfo, BackendReport, Event, EventKind, Membership, Recovery,
                    backends)
from .handle import Handle
from .process_set import ProcessSet, ProcessSetInfo, global_process_set
from .tensors import Array
from . import driver, elastic

__version__ = "0.2.0"


compiled = _calls is not None
"""Whether operations go through the package's compiled module; else they go through ctypes, which takes
longer."""


def version() -> str:
    """Of the library that is loaded."""
    return _lib.hvd_version().decode()


__all__ = [
    "Adasum", "Array", "Average", "BackendChoice", "BackendInfo", "BackendReport", "CallbackError",
    "ClosedError", "Codec", "Context", "DriverLostError", "Event", "EventKind", "Handle",
    "HorovodInternalError", "HostsUpdatedInterrupt", "HvdError", "InternalError", "InvalidError",
    "JobCompleteError", "JobFailedError", "JsonCodec", "LibraryError", "Max", "Membership", "Min",
    "MismatchError", "PickleCodec", "ProcessSet", "ProcessSetInfo", "Product", "Recovery", "Reduction",
    "RefusedError", "RemovedError", "Sum", "UnavailableError", "UnsupportedError", "WaitTimeoutError",
    "abort", "add_process_set", "allgather", "allgather_async", "allgather_object", "allreduce", "allreduce_",
    "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "backend", "backend_choice",
    "backends", "barrier", "barrier_async", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
    "broadcast_object", "broadcast_variables", "broadcast_variables_async", "ccl_built", "compiled",
    "context", "cross_rank", "cross_size", "cuda_built", "ddl_built", "describe_options", "driver", "elastic",
    "events", "gather", "gather_async", "gather_object", "generation", "global_process_set", "gloo_built",
    "gloo_enabled", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
    "grouped_reducescatter_async", "has_left", "hvdrun", "init", "is_homogeneous", "is_initialized", "join",
    "join_async", "leave", "library_path", "local_rank", "local_size", "membership", "mpi_built",
    "mpi_enabled", "mpi_threads_supported", "nccl_built", "poll", "rank", "receive", "receive_async",
    "recoveries", "reduce", "reduce_async", "reducescatter", "reducescatter_async", "register_listener",
    "remove_listener", "remove_process_set", "rocm_built", "run", "scatter", "scatter_async", "send",
    "send_async", "set_codec", "shutdown", "size", "start_timeline", "stop_timeline", "synchronize", "version"
]

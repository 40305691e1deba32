"""hvd for JAX: collectives that work under jit and grad, and elastic states of trees. docs/jax.md is the
manual.

    import hvd.jax as hvd
    hvd.init()
    gradients = hvd.allreduce(gradients)     # a tree, one operation; in a jitted function, too

It needs stock jax and jaxlib, and a C++ compiler once; without one, operations go through Python
(implementation() says which, and why).
"""

from __future__ import annotations

from importlib.util import find_spec as _find_spec

import jax as _jax  # says clearly that JAX is missing

if _find_spec("jax.ffi") is None:
    raise ImportError(f"JAX {_jax.__version__} has no jax.ffi: expected a newer one, which has")

from .._default import (abort, add_process_set, allgather_object, backend, barrier, broadcast_object, context,
                        cross_rank, cross_size, events, generation, init, is_initialized, join, local_rank,
                        local_size, membership, rank, recoveries, register_listener, remove_listener,
                        remove_process_set, shutdown, size, start_timeline, stop_timeline)
from ..collectives import Average, Max, Min, Product, Sum
from ..errors import (HorovodInternalError, HostsUpdatedInterrupt, HvdError, InvalidError, MismatchError,
                      RemovedError, WaitTimeoutError)
from ._native import implementation
from .errors import errors
from .ops import allgather, allreduce, alltoall, broadcast, place, reducescatter
from . import elastic

__all__ = [
    "Average", "HorovodInternalError", "HostsUpdatedInterrupt", "HvdError", "InvalidError", "Max", "Min",
    "MismatchError", "Product", "RemovedError", "Sum", "WaitTimeoutError", "abort", "add_process_set",
    "allgather", "allgather_object", "allreduce", "alltoall", "backend", "barrier", "broadcast",
    "broadcast_object", "context", "cross_rank", "cross_size", "elastic", "errors", "events", "generation",
    "implementation", "init", "is_initialized", "join", "local_rank", "local_size", "membership", "place",
    "rank", "recoveries", "reducescatter", "register_listener", "remove_listener", "remove_process_set",
    "shutdown", "size", "start_timeline", "stop_timeline"
]

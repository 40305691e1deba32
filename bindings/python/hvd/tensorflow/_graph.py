"""The compiled operation of graphs (native/tensorflow.cc): a node that waits for other ranks in no thread of
TensorFlow's."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Any, Sequence

import tensorflow as tf

from .. import _default
from .._abi import LIBRARY_PATH, lib
from ..collectives.operation import (ALLGATHER as ALLGATHER, ALLREDUCE as ALLREDUCE, ALLTOALL as ALLTOALL,
                                     BROADCAST as BROADCAST, REDUCESCATTER as REDUCESCATTER, members_of)
from ..context import Context



class _Library(ctypes.Structure):
    """Library of native/tensorflow.cc."""

    _fields_ = [(name, ctypes.c_void_p)
                for name in ("submit_and_wait", "output", "received", "destroy", "membership", "status_name")]


class _Operation:
    """Whether there is one, and if not, why."""

    def __init__(self) -> None:
        self.create: Any = None
        self.reason = ""
        if os.environ.get("HVD_TENSORFLOW_OP", "1") == "0":
            self.reason = "HVD_TENSORFLOW_OP=0"
            return
        name = "_tensorflow.so"
        places = [
            Path(__file__).resolve().parents[1] / name,
            *(parent / "bindings" / "python" / name for parent in Path(LIBRARY_PATH).resolve().parents[1:2])
        ]
        path = next((place for place in places if place.exists()), None)
        if path is None:
            self.reason = f"{name} is neither in the package nor beside the library"
            return
        try:
            self.create = getattr(tf.load_op_library(str(path)), "hvd_collective", None)
        except (tf.errors.OpError, RuntimeError) as error:
            self.reason = str(error)
            return
        if self.create is None:
            self.reason = f"TensorFlow {tf.__version__} has no asynchronous kernels in its C interface"
            return
        self._bind = ctypes.CDLL(str(path)).hvd_tensorflow_bind
        self._bind.argtypes, self._bind.restype = [ctypes.POINTER(_Library), ctypes.c_void_p], None
        functions = (lib.hvd_submit_and_wait, lib.hvd_op_get_output, lib.hvd_op_get_received_splits,
                     lib.hvd_op_destroy, lib.hvd_get_membership, lib.hvd_status_name)
        self._table = _Library(*[ctypes.cast(function, ctypes.c_void_p).value for function in functions])
        self._bind(ctypes.byref(self._table), None)
        _default.follow(self._use)

    def _use(self, context: Context) -> None:
        self._bind(None, context._handle.pointer)


operation = _Operation()


def collective(kind: int, tensors: Sequence[Any], dtypes: Sequence[tf.DType], *, key: str | None,
               reduction: int = 0, root: int = 0, prescale: float = 1.0, postscale: float = 1.0,
               has_splits: bool = False, process_set: Any = None, name: str) -> list[tf.Tensor]:
    """A node. Only where `operation.create` is there. The last of `tensors` are the splits, if it has_splits.
    """
    members = members_of(process_set) or 0
    return list(
        operation.create(inputs=list(tensors), Tout=list(dtypes), kind=kind, key=key or "",
                         reduction=int(reduction), root=int(root), prescale=_bits(prescale),
                         postscale=_bits(postscale), has_splits=int(has_splits),
                         process_set=members - (1 << 64) if members >= 1 << 63 else members, name=name))


def _bits(factor: float) -> int:
    """A double as the integer of its bits: TensorFlow's attributes know floats of 32 bits alone. 0: no
    factor."""
    return 0 if factor == 1.0 else struct.unpack("<q", struct.pack("<d", float(factor)))[0]

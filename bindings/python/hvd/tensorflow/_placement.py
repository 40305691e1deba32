"""device_dense and device_sparse: where Horovod places an operation. The library's have no such place: data
that lie on a device travel through host memory."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from ..errors import InvalidError

_warned: set[tuple[str, str]] = set()


def check(device_dense: Any = "", device_sparse: Any = "") -> None:
    """Nothing for a CPU; one warning for any other device; InvalidError for what is no device."""
    for what, device in (("device_dense", device_dense), ("device_sparse", device_sparse)):
        if not device:
            continue
        try:
            spec = tf.DeviceSpec.from_string(device) if isinstance(device, str) else device
            kind = spec.device_type
        except (AttributeError, ValueError) as problem:
            raise InvalidError(
                f"{what} is {device!r}: expected a device of TensorFlow's, as '/cpu:0'") from problem
        if kind in (None, "CPU") or (what, kind) in _warned:
            continue
        _warned.add((what, kind))
        warnings.warn(
            f"{what} is {device!r}, which has no effect: the operation is not placed on a {kind}, "
            "and tensors that lie there travel through host memory", stacklevel=3)

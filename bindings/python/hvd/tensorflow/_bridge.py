"""Between TensorFlow and the library: tensors as NumPy arrays without a copy, calls from within graphs,
errors out of them.

In eager mode a tensor's memory is borrowed as it is. Within tf.function an operation is a node of the
compiled operation (_graph.py), or where that is missing of tf.numpy_function. Both are stateful, so that
TensorFlow keeps the nodes of a function in program order, and every rank calls them in the same one.
"""

from __future__ import annotations

import ctypes
import math
import threading
import traceback
from collections import deque
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from ..errors import HvdError, InvalidError, MismatchError, marked
from ..tensors import CODES, DLPACK, capsule_of
from . import _graph

_ALIGNMENT = 64  # TensorFlow ends the process where a tensor's memory is not aligned so


class _Failures:
    """The exceptions behind nodes that failed: TensorFlow hands on their text alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[BaseException] = deque(maxlen=64)  # a program may catch what a node ends with

    def keep(self, failure: BaseException) -> None:
        traceback.clear_frames(failure.__traceback__)  # of those that are over: they hold tensors
        with self._lock:
            self._kept.append(failure)

    def take(self, texts: Sequence[str]) -> BaseException | None:
        """The newest whose own text is part of one of these. Forgets all."""
        with self._lock:
            kept = list(self._kept)
            self._kept.clear()
        for failure in reversed(kept):
            if str(failure) and any(str(failure) in text for text in texts):
                return failure
        return None

    def forget(self) -> None:
        with self._lock:
            self._kept.clear()


def _texts_of(error: BaseException | None) -> Iterator[str]:
    """What is said by those of an error's causes that a node may have become."""
    while error is not None:
        if isinstance(error, (tf.errors.OpError, ValueError, RuntimeError)):
            yield str(error)
        error = error.__cause__


_failures = _Failures()


def empty(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array that tensor_of() need not copy."""
    dtype = np.dtype(dtype)
    count = math.prod(shape) * dtype.itemsize
    raw = np.empty(count + _ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % _ALIGNMENT
    return raw[first:first + count].view(dtype).reshape(shape)


def array_of(tensor: Any) -> np.ndarray:
    """The memory of an eager tensor or a variable's present value, read-only. The array keeps the tensor, and
    a variable whose value is kept takes other memory when it is written."""
    if _is_plain(tensor):
        tensor = tf.raw_ops.ReadVariableOp(resource=tensor.handle, dtype=tensor.dtype)
    elif isinstance(tensor, tf.Variable):
        tensor = tensor.read_value()
    try:
        return np.asarray(tensor, order="C")
    except ValueError:  # some scalars have no buffer (bfloat16)
        return np.asarray(tensor.numpy())


def _is_plain(variable: Any) -> bool:
    """Whether reading and assigning are an operation each; tf.Variable's methods add others, and take four
    times as long."""
    return type(variable).__name__ == "ResourceVariable"


def assign(variable: tf.Variable, array: np.ndarray) -> None:
    """In eager mode, an array as tensor_of() takes it, of the variable's shape and dtype."""
    tensor = tensor_of(array)
    if _is_plain(variable):
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tensor)
    else:
        variable.assign(tensor)


def alias(array: np.ndarray) -> np.ndarray:
    """The same memory as one that may be written, for an operation that takes no other and does not write."""
    if array.flags.writeable:
        return array
    if not array.nbytes:
        return np.empty_like(array)
    memory = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    memory._owner = array  # keeps it
    return np.frombuffer(memory, np.uint8).view(array.dtype).reshape(array.shape)


def tensor_of(array: np.ndarray) -> tf.Tensor:
    """An eager tensor of an array's memory, which nobody else may use from then on; of a copy where the array
    is none of empty()'s, and where the compiled module is missing."""
    flags, address = array.flags, array.ctypes.data
    aligned = address % _ALIGNMENT == 0
    if capsule_of is not None and array.nbytes and flags.c_contiguous and flags.writeable and aligned:
        try:
            return tf.experimental.dlpack.from_dlpack(
                capsule_of(array, address, *DLPACK[array.dtype.name], array.shape, False))
        except tf.errors.InvalidArgumentError:  # of bool before TensorFlow 2.13
            pass
    return tf.convert_to_tensor(array)


def label(name: str | None, kind: str, tensor: Any) -> str | None:
    """A graph of TensorFlow 1 runs its nodes in any order: there an operation without a name has that of its
    input."""
    if name is not None or tf.executing_eagerly() or tf.inside_function():
        return name
    return tensor.graph.unique_name(f"Hvd{kind}_{tensor.op.name}")


def check(tensor: Any, what: str) -> tf.Tensor:
    """As a dense tensor of a dtype that the library has; TypeError or InvalidError says what is wrong."""
    if isinstance(tensor, (tf.IndexedSlices, tf.SparseTensor, tf.RaggedTensor)):
        raise TypeError(f"{what}: expected a dense tensor, and not {type(tensor).__name__}")
    tensor = tf.convert_to_tensor(tensor)
    if tensor.dtype.name not in CODES:
        raise InvalidError(f"{what}: dtype {tensor.dtype.name} is not one of {', '.join(CODES)}")
    return tensor


def call(function: Callable[..., Any], tensors: Sequence[Any], dtypes: Sequence[tf.DType],
         shapes: Sequence[Any], name: str, native: dict[str, Any] | None = None) -> list[tf.Tensor]:
    """function(*arrays) -> list of arrays, at once in eager mode and as a node of the graph elsewhere.

    native: what _graph.collective() takes to do the same.
    """
    if tf.executing_eagerly():
        try:
            results = function(*[array_of(tensor) for tensor in tensors])
        except (MismatchError, InvalidError) as error:
            raise _also_tensorflows(error) from None
        return [tensor_of(array) for array in results]

    if native is not None and _graph.operation.create is not None:
        results = _graph.collective(tensors=tensors, dtypes=dtypes, name=name, **native)
        for result, shape in zip(results, shapes):
            result.set_shape(shape)
        return results

    def node(*arrays: np.ndarray) -> list[np.ndarray]:
        try:
            return function(*[np.asarray(array, order="C") for array in arrays])
        except BaseException as failure:
            _failures.keep(failure)
            raise

    results = tf.numpy_function(node, list(tensors), list(dtypes), stateful=True, name=name)
    if not isinstance(results, (list, tuple)):
        results = [results] if dtypes else []
    for result, shape in zip(results, shapes):
        result.set_shape(shape)
    return list(results)


_both: dict[type, Any] = {}  # by class of ours: one that is TensorFlow's, too


def _also_tensorflows(error: HvdError) -> HvdError:
    """The error as one that `except tf.errors...` takes as well, as scripts for Horovod expect."""
    kind = type(error)
    theirs = tf.errors.FailedPreconditionError if isinstance(
        error, MismatchError) else tf.errors.InvalidArgumentError
    if kind not in _both:
        _both[kind] = type(kind.__name__, (kind, theirs), {"__module__": kind.__module__})
    both = _both[kind].__new__(_both[kind])
    theirs.__init__(both, None, None, error.message)  # type: ignore[arg-type]
    both.__dict__.update({name: value for name, value in error.__dict__.items() if name != "message"})
    return both.with_traceback(error.__traceback__)


@contextmanager
def original_errors() -> Iterator[None]:
    """Raises the exception that a node of a graph ended with in place of the tf.errors.OpError that it
    became."""
    _failures.forget()
    try:
        yield
    except HvdError:
        raise
    except Exception as error:
        texts = list(_texts_of(error))
        failure = _failures.take(texts) or (marked(error) if texts else None)
        if failure is None:
            raise
        raise failure from error

"""The collectives on TensorFlow's tensors, with horovod.tensorflow's parameters and gradients.

Each works in eager mode, within tf.function and in graphs of TensorFlow 1. `device_dense` and `device_sparse`
place nothing (_placement.py). `ignore_name_scope` is taken for Horovod's sake: names are what the caller
gives.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import tensorflow as tf

from .. import _default as plain
from ..collectives import Adasum, Average, Reduction, Sum
from ..errors import InvalidError
from ..process_set import ProcessSet, global_process_set
from . import _bridge, _graph, _placement
from .compression import Compression


def handle_average_backwards_compatibility(op: Reduction | None, average: bool | None) -> Reduction:
    """Horovod's old parameter `average` beside the newer `op`."""
    if average is not None and op is not None:
        raise InvalidError("give op or average, and not both")
    if op is not None:
        return Reduction(op)
    return Average if average is None or average else Sum


def _members(process_set: Any) -> tuple[int, int]:
    """This worker's rank in the set, or that of this number, and the set's size, now."""
    if isinstance(process_set, int) and process_set != 0:
        process_set = plain.context()._process_set(process_set)
    if isinstance(process_set, ProcessSet):
        info = process_set.info()
        return info.rank, info.size
    return plain.rank(), plain.size()


def _derived(name: str | None, what: str) -> str | None:
    """A name for a part of an operation. A graph of TensorFlow 1 may have several gradients of one, which run
    at once."""
    if name is None:
        return None
    if tf.executing_eagerly() or tf.inside_function():
        return f"{name}.{what}"
    return tf.compat.v1.get_default_graph().unique_name(f"{name}.{what}")


# ---- allreduce ----


def _allreduce_many(tensors: Sequence[tf.Tensor], name: str | None, op: Reduction, prescale: float,
                    postscale: float, process_set: Any) -> list[tf.Tensor]:
    """One operation for all of them, differentiable for Sum and Average."""

    def reduce(*arrays: np.ndarray) -> list[np.ndarray]:
        results = [_bridge.empty(array.shape, array.dtype) for array in arrays]
        if len(arrays) == 1:
            plain.allreduce(arrays[0], name, op, out=results[0], prescale_factor=prescale,
                            postscale_factor=postscale, process_set=process_set)
        else:
            plain.grouped_allreduce_async(arrays, name, op, out=results, prescale_factor=prescale,
                                          postscale_factor=postscale, process_set=process_set).wait()
        return results

    native = None if op == Adasum else dict(kind=_graph.ALLREDUCE, key=name, reduction=op, prescale=prescale,
                                            postscale=postscale, process_set=process_set)

    @tf.custom_gradient
    def differentiable(*inputs: tf.Tensor) -> Any:
        outputs = _bridge.call(reduce, inputs, [t.dtype for t in inputs], [t.shape for t in inputs],
                               "HvdAllreduce", native)

        def gradient(*upstream: tf.Tensor) -> Any:
            if op not in (Sum, Average):
                raise InvalidError(f"allreduce with {op.name} has no gradient")
            return _allreduce_many([tf.convert_to_tensor(g) for g in upstream], _derived(name, "gradient"),
                                   op, prescale, postscale, process_set)

        return outputs, gradient

    return list(differentiable(*tensors))


def _reduce_slices(slices: tf.IndexedSlices, name: str | None, op: Reduction,
                   process_set: Any) -> tf.IndexedSlices:
    """All ranks' rows with their indices: adding up is left to whoever applies them."""
    if op not in (Sum, Average):
        raise NotImplementedError(f"allreduce of IndexedSlices with {op.name}: expected Sum or Average")
    name = _bridge.label(name, "Slices", slices.values)
    values = allgather(slices.values, _derived(name, "values"), process_set=process_set)
    indices = allgather(slices.indices, _derived(name, "indices"), process_set=process_set)
    if op == Average:
        values = values / tf.cast(size_op(process_set), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def allreduce(tensor: Any, average: bool | None = None, device_dense: str = "", device_sparse: str = "",
              compression: Any = Compression.none, op: Reduction | None = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, name: str | None = None, process_set: Any = global_process_set,
              ignore_name_scope: bool = False) -> Any:
    """A new tensor, or IndexedSlices for IndexedSlices; the mean over the ranks unless op says otherwise."""
    operation = handle_average_backwards_compatibility(op, average)
    _placement.check(device_dense, device_sparse)
    if isinstance(tensor, tf.IndexedSlices):
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            raise NotImplementedError("prescale_factor and postscale_factor: not for IndexedSlices")
        return _reduce_slices(tensor, name, operation, process_set)
    packed, context = compression.compress(_bridge.check(tensor, "allreduce"))
    name = _bridge.label(name, "Allreduce", packed)
    (result,) = _allreduce_many([packed], name, operation, prescale_factor, postscale_factor, process_set)
    return compression.decompress(result, context)


def grouped_allreduce(tensors: Sequence[Any], average: bool | None = None, device_dense: str = "",
                      device_sparse: str = "", compression: Any = Compression.none,
                      op: Reduction | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: Any = global_process_set,
                      ignore_name_scope: bool = False, name: str | None = None) -> list[Any]:
    """Several tensors as one operation. IndexedSlices among them are gathered, each by itself."""
    operation = handle_average_backwards_compatibility(op, average)
    _placement.check(device_dense, device_sparse)
    results: list[Any] = list(tensors)
    dense = [index for index, tensor in enumerate(tensors) if not isinstance(tensor, tf.IndexedSlices)]
    packed = [compression.compress(_bridge.check(tensors[index], f"grouped_allreduce, tensor {index}"))
              for index in dense]
    if packed:
        name = _bridge.label(name, "GroupedAllreduce", packed[0][0])
        reduced = _allreduce_many([tensor for tensor, _ in packed], name, operation, prescale_factor,
                                  postscale_factor, process_set)
        for index, tensor, (_, context) in zip(dense, reduced, packed):
            results[index] = compression.decompress(tensor, context)
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, tf.IndexedSlices):
            results[index] = _reduce_slices(tensor, _derived(name, str(index)), operation, process_set)
    return results


# ---- allgather, broadcast ----

def _first_free(tensor: tf.Tensor) -> tf.TensorShape:
    return tf.TensorShape([None]).concatenate(tensor.shape[1:]) if tensor.shape.rank else tf.TensorShape(None)


def grouped_allgather(tensors: Sequence[Any], name: str | None = None, ignore_name_scope: bool = False,
                      process_set: Any = global_process_set) -> list[tf.Tensor]:
    """All ranks' rows of each tensor, as one operation. First dimensions may differ. Differentiable."""
    inputs = [_bridge.check(tensor, f"allgather, tensor {index}") for index, tensor in enumerate(tensors)]
    for index, tensor in enumerate(inputs):
        if tensor.shape.rank == 0:
            raise InvalidError(
                f"allgather, tensor {index}: a scalar has no rows; expected at least 1 dimension")
    if not inputs:
        return []
    name = _bridge.label(name, "Allgather", inputs[0])

    def gather(*arrays: np.ndarray) -> list[np.ndarray]:
        if len(arrays) == 1:
            return [plain.allgather(arrays[0], name, process_set=process_set)]
        return plain.grouped_allgather(arrays, name, process_set=process_set)

    @tf.custom_gradient
    def differentiable(*inputs: tf.Tensor) -> Any:
        outputs = _bridge.call(gather, inputs, [t.dtype for t in inputs], [_first_free(t) for t in inputs],
                               "HvdAllgather", dict(kind=_graph.ALLGATHER, key=name, process_set=process_set))
        rows = [tf.shape(t, tf.int64)[0] for t in inputs]

        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            # As in Horovod: the mean over the ranks, of which each takes its own rows.
            means = _allreduce_many([tf.convert_to_tensor(g) for g in upstream], _derived(name, "gradient"),
                                    Average, 1.0, 1.0, process_set)
            counts = allgather(tf.expand_dims(tf.stack(rows), 0), _derived(name, "rows"),
                               process_set=process_set)
            before = tf.reduce_sum(counts[:rank_op(process_set=process_set)], 0)
            return [mean[before[i]:before[i] + rows[i]] for i, mean in enumerate(means)]

        return outputs, gradient

    return list(differentiable(*inputs))


def allgather(tensor: Any, name: str | None = None, ignore_name_scope: bool = False,
              process_set: Any = global_process_set) -> tf.Tensor:
    """All ranks' rows, one after the other. Differentiable."""
    return grouped_allgather([tensor], name, process_set=process_set)[0]


def broadcast(tensor: Any, root_rank: int, name: str | None = None, ignore_name_scope: bool = False,
              process_set: Any = global_process_set) -> tf.Tensor:
    """The root's tensor on every rank; differentiable. root_rank: a rank of the job, also with a process set.
    """
    tensor = _bridge.check(tensor, "broadcast")
    name = _bridge.label(name, "Broadcast", tensor)

    def send(array: np.ndarray) -> list[np.ndarray]:
        result = _bridge.empty(array.shape, array.dtype)
        if plain.rank() == root_rank:
            result[...] = array
        return [plain.broadcast_(result, root_rank, name, process_set=process_set)]

    @tf.custom_gradient
    def differentiable(value: tf.Tensor) -> Any:
        (output, ) = _bridge.call(
            send, [value], [value.dtype], [value.shape], "HvdBroadcast",
            dict(kind=_graph.BROADCAST, key=name, root=root_rank, process_set=process_set))

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            (mean, ) = _allreduce_many([tf.convert_to_tensor(upstream)], _derived(name, "gradient"), Average,
                                       1.0, 1.0, process_set)
            return tf.where(tf.equal(rank_op(), root_rank), mean, tf.zeros_like(mean))

        return output, gradient

    return differentiable(tensor)


# ---- alltoall, reducescatter ----

def alltoall(tensor: Any, splits: Any = None, name: str | None = None, ignore_name_scope: bool = False,
             process_set: Any = global_process_set) -> Any:
    """splits[i] rows go to rank i. With splits: (rows received, how many from each rank). Differentiable."""
    value = _bridge.check(tensor, "alltoall")
    name = _bridge.label(name, "Alltoall", value)
    even = splits is None
    if even:
        members = size_op(process_set)
        rows = tf.shape(value)[0]
        with tf.control_dependencies([tf.debugging.assert_equal(
                rows % members, 0, "alltoall without splits: the number of ranks must divide the rows")]):
            splits = tf.fill([members], rows // members)
    wanted = tf.cast(tf.convert_to_tensor(splits), tf.int64)

    def exchange(array: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
        result, received = plain.alltoall(array, counts.tolist(), name, process_set=process_set)
        return [result, np.asarray(received, np.int64)]

    @tf.custom_gradient
    def differentiable(value: tf.Tensor) -> Any:
        output, received = _bridge.call(
            exchange, [value, wanted], [value.dtype, tf.int64], [_first_free(value), [None]], "HvdAlltoall",
            dict(kind=_graph.ALLTOALL, key=name, has_splits=True, process_set=process_set))

        def gradient(upstream: tf.Tensor, _: Any = None) -> tf.Tensor:
            return alltoall(upstream, received, _derived(name, "gradient"), process_set=process_set)[0]

        return (output, received), gradient

    output, received = differentiable(value)
    return output if even else (output, tf.cast(received, tf.int32))


def reducescatter(tensor: Any, device_dense: str = "", compression: Any = Compression.none,
                  op: Reduction = Average, name: str | None = None, process_set: Any = global_process_set,
                  ignore_name_scope: bool = False, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> tf.Tensor:
    """This rank's share of the rows of the reduction. Differentiable for Sum and Average."""
    operation = Reduction(op)
    _placement.check(device_dense)
    packed, context = compression.compress(_bridge.check(tensor, "reducescatter"))
    if packed.shape.rank == 0:
        raise InvalidError("reducescatter: a scalar has no rows; expected at least 1 dimension")
    name = _bridge.label(name, "Reducescatter", packed)

    def reduce(array: np.ndarray) -> list[np.ndarray]:
        return [plain.reducescatter(array, name, operation, prescale_factor=prescale_factor,
                                    postscale_factor=postscale_factor, process_set=process_set)]

    @tf.custom_gradient
    def differentiable(value: tf.Tensor) -> Any:
        (output, ) = _bridge.call(
            reduce, [value], [value.dtype], [_first_free(value)], "HvdReducescatter",
            dict(kind=_graph.REDUCESCATTER, key=name, reduction=operation, prescale=prescale_factor,
                 postscale=postscale_factor, process_set=process_set))

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            if operation not in (Sum, Average):
                raise InvalidError(f"reducescatter with {operation.name} has no gradient")
            whole = allgather(upstream, _derived(name, "gradient"), process_set=process_set)
            factor = tf.cast(prescale_factor * postscale_factor, whole.dtype)
            if operation == Sum:  # Horovod's, which is that of each rank's share of the sum
                factor *= tf.cast(size_op(process_set), whole.dtype)
            return whole * factor

        return output, gradient

    return compression.decompress(differentiable(packed), context)


def grouped_reducescatter(tensors: Sequence[Any], device_dense: str = "", compression: Any = Compression.none,
                          op: Reduction = Average, process_set: Any = global_process_set,
                          prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                          ignore_name_scope: bool = False, name: str | None = None) -> list[tf.Tensor]:
    return [reducescatter(tensor, device_dense, compression, op, _derived(name, str(index)), process_set,
                          ignore_name_scope, prescale_factor, postscale_factor)
            for index, tensor in enumerate(tensors)]


def barrier(process_set: Any = global_process_set) -> None:
    plain.barrier(process_set=process_set)


# ---- numbers that may change while a graph lives ----

def _number(read: Any, name: str | None) -> tf.Tensor:
    if tf.executing_eagerly():
        return tf.constant(read(), tf.int32)
    (result, ) = _bridge.call(lambda: [np.asarray(read(), np.int32)], [], [tf.int32], [[]], name or
                              "HvdNumber")
    return result


def size_op(process_set_id: Any = 0, name: str | None = None) -> tf.Tensor:
    """The number of ranks when the graph runs, which elastic training changes; of a process set, or of that
    with this number."""
    return _number(lambda: _members(process_set_id)[1], name)


def rank_op(name: str | None = None, process_set: Any = global_process_set) -> tf.Tensor:
    """This worker's rank when the graph runs; within a process set its rank there."""
    return _number(lambda: _members(process_set)[0], name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    return _number(plain.local_size, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    return _number(plain.local_rank, name)


def process_set_included_op(process_set_id: Any = 0, name: str | None = None) -> tf.Tensor:
    """1 if this worker is a member when the graph runs, else 0. A process set, or its number."""
    return _number(lambda: int(_members(process_set_id)[0] >= 0), name)

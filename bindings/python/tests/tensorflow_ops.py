"""A worker of test_tensorflow.py: every operation in eager mode and in a graph, against what it must give."""

import numpy as np
import tensorflow as tf

import hvd.tensorflow as hvd
from hvd.tensorflow import functions

hvd.init()
r, n = hvd.rank(), hvd.size()
total = n * (n + 1) / 2  # of rank + 1 over the ranks
x = tf.constant([1.0, 2.0, 3.0]) * (r + 1)
base = np.array([1.0, 2.0, 3.0])


def same(found, expected, what):
    assert np.allclose(np.asarray(found, np.float64), np.asarray(expected,
                                                                 np.float64)), (what, found, expected)


def results(v):
    """Name of each operation: its result."""
    exchanged, received = hvd.alltoall(tf.range(n * 2, dtype=tf.float32) + 100 * r, tf.fill([n], 2))
    grouped = hvd.grouped_allreduce([v, 2 * v, tf.cast(v, tf.int32)], op=hvd.Sum)
    return {
        "sum": hvd.allreduce(v, op=hvd.Sum), "average": hvd.allreduce(v),
        "average=False": hvd.allreduce(v, False), "half": hvd.allreduce(v, compression=hvd.Compression.fp16),
        "max": hvd.allreduce(v, op=hvd.Max), "scaled": hvd.allreduce(v, op=hvd.Sum, prescale_factor=2.0,
                                                                     postscale_factor=0.5, name="scaled"),
        "bfloat16": tf.cast(hvd.allreduce(tf.cast(v, tf.bfloat16), op=hvd.Sum),
                            tf.float32), "scalar": hvd.allreduce(v[0], op=hvd.Sum), "grouped": grouped[1],
        "grouped int": tf.cast(grouped[2],
                               tf.float32), "allgather": hvd.allgather(tf.fill([r + 1, 2], float(r))),
        "broadcast": hvd.broadcast(v, n - 1), "broadcast scalar": hvd.broadcast(v[0],
                                                                                n - 1), "alltoall": exchanged,
        "received": tf.cast(received,
                            tf.float32), "even": hvd.alltoall(tf.range(n * 2, dtype=tf.float32) + 100 * r),
        "reducescatter": hvd.reducescatter(tf.ones([n * 2, 3]) * (r + 1),
                                           op=hvd.Sum), "size": tf.cast(hvd.size_op(), tf.float32),
        "rank": tf.cast(hvd.rank_op(), tf.float32), "slices": tf.convert_to_tensor(
            hvd.allreduce(tf.IndexedSlices(tf.ones([1, 2]) * (r + 1), tf.constant([r]), tf.constant([n,
                                                                                                     2])))),
    }


mine = np.arange(2 * r, 2 * r + 2)
everybodys = np.concatenate([mine + 100 * i for i in range(n)])
EXPECTED = {
    "sum": base * total, "average": base * total / n, "average=False": base * total, "half": base * total / n,
    "max": base * n, "scaled": base * total, "bfloat16": base * total, "scalar": total,
    "grouped": 2 * base * total, "grouped int": base * total,
    "allgather": np.concatenate([np.full((i + 1, 2), i)
                                 for i in range(n)]), "broadcast": base * n, "broadcast scalar": n,
    "alltoall": everybodys, "received": [2] * n, "even": everybodys, "reducescatter": np.full(
        (2, 3), total), "size": n, "rank": r, "slices": [[(i + 1) / n] * 2 for i in range(n)],
}


def gradients(v):
    """Horovod's: those of allgather and broadcast are means over the ranks."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(v)
        sums = {
            "allreduce": tf.reduce_sum(hvd.allreduce(v, op=hvd.Sum) * (r + 1)),
            "grouped": tf.reduce_sum(hvd.grouped_allreduce([v, v], op=hvd.Sum)[1] * (r + 1)),
            "allgather": tf.reduce_sum(hvd.allgather(tf.reshape(v, [3, 1])) * (r + 1)),
            "broadcast": tf.reduce_sum(hvd.broadcast(v, 0) * (r + 1)),
            "alltoall": tf.reduce_sum(hvd.alltoall(tf.tile(v, [n])) * (r + 1)),
            "reducescatter": tf.reduce_sum(hvd.reducescatter(tf.tile(v, [n]), op=hvd.Sum) * (r + 1)),
        }
    return {name: tape.gradient(value, v) for name, value in sums.items()}


EXPECTED_GRADIENTS = {
    "allreduce": np.full(3, total), "grouped": np.full(3, total), "allgather": np.full(3, total / n),
    "broadcast": np.full(3, total / n if r == 0 else 0), "alltoall": np.full(3, total),
    "reducescatter": np.full(3, n * total)
}

for mode in (lambda function: function, tf.function):
    for name, found in mode(results)(x).items():
        same(found, EXPECTED[name], name)
    for name, found in mode(gradients)(x).items():
        same(found, EXPECTED_GRADIENTS[name], f"gradient of {name}")

    v, w = tf.Variable([1.0 * r, 2.0], name="v"), tf.Variable(float(r), name="w")

    def step(v=v, w=w):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(v * v) * (r + 1) + w
        tape = hvd.DistributedGradientTape(tape)
        return tape.gradient(loss, {"v": v, "w": w})

    found = mode(step)()
    expected = [sum(2 * i * (i + 1) for i in range(n)) / n, 4 * total / n]
    same(found["v"], expected, "tape")
    same(found["w"], 1, "tape")

    def unequal(v=v, w=w):
        with hvd.DistributedGradientTape(tf.GradientTape(), gradient_predivide_factor=2.0) as tape:
            loss = tf.reduce_sum(v * v) * (r + 1) + w
        tape.register_local_source(w)
        return tape.gradient(loss, [v, w])

    found = mode(unequal)()
    same(found[0], expected, "tape around what it records")
    same(found[1], 1 / n, "a local gradient")

    mode(lambda v=v, w=w: hvd.broadcast_variables([v, w], n - 1))()
    same(v, [n - 1, 2], "broadcast_variables")
    same(w, n - 1, "broadcast_variables")

# In portions: as many variables as 40 bytes hold, or one. Ranks with other numbers of them find out.
functions._PORTION = 40
kinds = (([4], "float32"), ([3, 2], "float32"), ([], "bfloat16"), ([20], "int64"), ([0, 2], "float32"),
         ([2], "bool"))
some = [tf.Variable(tf.fill(shape, tf.cast(10 * r + i, dtype))) for i, (shape, dtype) in enumerate(kinds)]
some.append(tf.Variable([6.0 + 10 * r], shape=tf.TensorShape([None])))
assert [len(portion) for portion in functions._portions(some)] == [2, 1, 1, 3]
before = [variable.read_value() for variable in some]
hvd.broadcast_variables(some, n - 1, name="portions")
for i, variable in enumerate(some):
    for tensor, rank, what in ((variable, n - 1, "portion"), (before[i], r, "before")):
        expected = tf.cast(10 * rank + i, tensor.dtype)
        same(tf.cast(tensor, tf.float32), tf.cast(expected, tf.float32), (what, i))
if n > 1:
    try:
        hvd.broadcast_variables(some[:4] if r else some, 0, name="other numbers")
        raise AssertionError("the ranks have other numbers of variables")
    except hvd.MismatchError as error:
        assert "[0, 4]" in str(error) and "[0, 7]" in str(error), error

embedding = tf.Variable(tf.zeros([n + 1, 2]))
for dense in (False, True):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(embedding, [r, n]))
    tape = hvd.DistributedGradientTape(tape, sparse_as_dense=dense, op=hvd.Sum)
    gradient = tape.gradient(loss, embedding)
    assert isinstance(gradient, tf.IndexedSlices) != dense
    same(tf.convert_to_tensor(gradient), [[1, 1]] * n + [[n, n]], f"embedding, dense {dense}")

# The ranks name the same groups, each in its way: the first variable and their number name
# an operation.
many = [tf.Variable([1.0 * i], name=f"m{i}") for i in range(5)]
for number, lists in ((2, [many[:3], many[3:]]), (9, [[one] for one in many])):
    for mode in (lambda function: function, tf.function):
        def grouped(options=[{"num_groups": number}, {"groups": lists}, {"groups": number}][r % 3]):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(v * v) for v in many]) * (r + 1)
            return hvd.DistributedGradientTape(tape, op=hvd.Sum, **options).gradient(loss, many)

        same(mode(grouped)(), [[2 * i * total] for i in range(5)], f"{number} groups")

assert hvd.broadcast_object({"a": r}, n - 1) == {"a": n - 1} == hvd.broadcast_object_fn(n - 1)({"a": r})
assert hvd.allgather_object(r) == list(range(n))

pair = hvd.add_process_set(sorted({0, n - 1}))
if pair.included():
    same(hvd.allreduce(x, op=hvd.Sum, process_set=pair), base * sum({1, n}), "a process set")
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(v * v) * (r + 1)
tape = hvd.DistributedGradientTape(tape, process_set=pair)
same(
    tape.gradient(loss, v)[1], 4 * (sum({1, n}) / pair.size() if pair.included() else r + 1),
    "outside a set a rank trains alone")

with tf.Graph().as_default():
    first, second = tf.compat.v1.get_variable("first", initializer=float(r)), tf.compat.v1.get_variable(
        "second", initializer=[2.0 * r])
    reduced = hvd.allreduce(first, op=hvd.Sum)
    optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
    train = optimizer.minimize(second[0] * (r + 1), var_list=[second])
    send = hvd.broadcast_global_variables(n - 1)
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        same(session.run(reduced), total - n, "TensorFlow 1")
        session.run(send)
        same(session.run(first), n - 1, "TensorFlow 1, broadcast")
        session.run(train)
        same(session.run(second), [2 * (n - 1) - total / n], "TensorFlow 1, optimizer")

import keras

# Of these layers the first is each rank's own.
layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
for layer in layers:
    layer.build((None, 1))
for scaled in (True, False):
    with hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=layers[0],
                                            scale_local_gradients=scaled) as tape:
        loss = tf.reduce_sum(layers[1](layers[0](tf.ones([1, 1])))) * (r + 1)
    kernels = [layer.kernel for layer in layers]
    if not isinstance(kernels[0], tf.Variable):  # Keras 3
        kernels = [kernel.value for kernel in kernels]
    found = tape.gradient(loss, kernels)
    same(found[0], [[(r + 1) / n if scaled else r + 1]], "the gradient of a local layer")
    same(found[1], [[total / n]], "the gradient of the other one")

with tf.Graph().as_default():
    variable = tf.compat.v1.get_variable("hooked", initializer=float(r))
    hook = hvd.BroadcastGlobalVariablesHook(n - 1)
    with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
        same(session.run(variable), n - 1, "BroadcastGlobalVariablesHook")

for i in range(r + 1):  # those who have joined count as zeros
    same(hvd.allreduce(tf.ones(2), op=hvd.Sum, name=f"uneven {i}"), [n - i] * 2, "while ranks have joined")
assert hvd.join() == n - 1

# Batches of 1, 2, 3 ... samples against one batch normalization over all of them.
whole = np.random.default_rng(3).normal(1, 3, (n * (n + 1) // 2, 4, 2)).astype(np.float32)
rows = slice(r * (r + 1) // 2, (r + 1) * (r + 2) // 2)
alone, sync = keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()
for run in (lambda f: f(), lambda f: tf.function(f)()):
    def step(layer, data):
        with tf.GradientTape() as tape:
            tape.watch(data)
            result = layer(data, training=True)
            loss = tf.reduce_sum(result * result * result)
        return result, tape.gradient(loss, data)

    expected, slope = run(lambda: step(alone, tf.constant(whole)))
    result, mine = run(lambda: step(sync, tf.constant(whole[rows])))
    np.testing.assert_allclose(result, expected[rows], atol=1e-4)
    np.testing.assert_allclose(mine, slope[rows], atol=1e-3)
    for name in ("moving_mean", "moving_variance"):
        np.testing.assert_allclose(getattr(sync, name), getattr(alone, name), atol=1e-4)

own = np.zeros(n, np.float32)
own[r] = r + 1
same(hvd.allreduce(tf.constant(own), op=hvd.Adasum), np.arange(1, n + 1), "Adasum of orthogonal vectors")
same(
    tf.function(lambda: hvd.grouped_allreduce([tf.fill([3], 2.0), tf.zeros(2)], op=hvd.Adasum, name="ada")[0])
    (), [2, 2, 2], "Adasum of parallel vectors")

# Nodes of a graph of TensorFlow 1 without names: they run in any order, and meet all the same.
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    inputs = [tf.fill([i + 1], float(r * i)) for i in range(2)]
    nodes = [hvd.allreduce(inputs[0], op=hvd.Sum), hvd.allgather(inputs[1])]
    sums, rows = session.run(nodes if r % 2 else nodes[::-1])[::1 if r % 2 else -1]
    same(sums, [0.0], "unnamed")
    same(rows, [float(rank) for rank in range(n) for _ in range(2)], "unnamed rows")

for wrong in (tf.errors.FailedPreconditionError, hvd.MismatchError):  # both, as it is
    try:
        hvd.allreduce(tf.ones(2 + r), name=f"eager {wrong.__name__}")
        assert n == 1
    except wrong as error:
        assert f"eager {wrong.__name__}" in str(error) and "shape" in error.message and error.status, error

try:
    tf.function(lambda: hvd.allreduce(tf.ones(2 + r), name="shapes"))()
    assert n == 1
except tf.errors.OpError as error:  # without hvd.tensorflow.elastic.run it comes as TensorFlow wraps it
    assert "shapes" in str(error) and "HVD_MISMATCH" in str(error), error

print(f"rank {r} of {n}: all as expected", flush=True)
hvd.shutdown()

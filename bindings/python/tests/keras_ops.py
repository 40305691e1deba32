"""A worker of test_tensorflow.py: optimizers and callbacks of Keras on the backend that KERAS_BACKEND names.
"""

import os
import sys

import numpy as np

import hvd.keras as hvd
from hvd.keras._keras import IS_KERAS_3, keras  # tf_keras, with TF_USE_LEGACY_KERAS

hvd.init()
r, n = hvd.rank(), hvd.size()
assert hvd.allreduce(float(r)) == (n - 1) / 2 and hvd.broadcast(np.ones(2) * r, n - 1).tolist() == [n - 1] * 2
assert hvd.allgather(np.full((1, 2), r)).shape == (n, 2)
fine = 1 + 2.0**-20  # which half precision does not tell from 1
for value, half in ((fine, False), (fine, True), (np.full((2, 1), fine, "f"), True)):
    found = hvd.allreduce(value, op=hvd.Sum, compression=hvd.Compression.fp16 if half else None)
    assert np.shape(found) == np.shape(value), found
    assert np.allclose(found, n * (1 if half else fine), 0, 1e-9), found
    assert not half or found.dtype == np.asarray(value).dtype or np.shape(value) == (), found
assert hvd.allreduce(1 << 20, op=hvd.Sum, compression=hvd.Compression.fp16) == n << 20


def network(seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [keras.layers.Input((4, )),
         keras.layers.Dense(3, activation="tanh"),
         keras.layers.Dense(1)])
    return model


def equal_everywhere(model):
    everybody = hvd.allgather_object([w.tolist() for w in model.get_weights()])
    return all(np.allclose(a, b, atol=1e-6) for other in everybody for a, b in zip(other, everybody[0]))


random = np.random.default_rng(5)
inputs, targets = random.normal(size=(64 * n, 4)).astype("f"), random.normal(size=(64 * n, 1)).astype("f")
mine = slice(64 * r, 64 * r + 64)
makes = [lambda: keras.optimizers.SGD(0.1, momentum=0.9), lambda: keras.optimizers.Adam(0.01)]
if not IS_KERAS_3:
    makes.append(lambda: keras.optimizers.legacy.Adam(0.01))
for make in makes:
    # Half of each batch on each of two ranks is the same as the whole on one.
    model, whole = network(1), network(1)
    # The same groups, which each rank names in its way.
    variables = model.trainable_variables
    groups = {"num_groups": 2} if r % 2 else {"groups": [variables[:2], variables[2:]]}
    optimizer = hvd.DistributedOptimizer(make(), **groups)
    assert type(optimizer).__name__ == type(make()).__name__
    model.compile(optimizer=optimizer, loss="mse")
    whole.compile(optimizer=make(), loss="mse")
    for begin in range(0, 64, 16):
        model.train_on_batch(inputs[mine][begin:begin + 16], targets[mine][begin:begin + 16])
        rows = np.concatenate([np.arange(64 * i + begin, 64 * i + begin + 16) for i in range(n)])
        whole.train_on_batch(inputs[rows], targets[rows])
    for a, b in zip(model.get_weights(), whole.get_weights()):
        assert np.allclose(a, b, atol=1e-5), (a, b)

def variables_of(model):
    found = model.optimizer.variables
    number = keras.ops.convert_to_numpy if IS_KERAS_3 else keras.backend.get_value
    return [np.array(number(v)) for v in (found() if callable(found) else found)]


def all_of(model):
    return [np.array(w) for w in model.get_weights()] + variables_of(model)


# A state gives back what it was made with, and what was committed: weights, slots, the number of iterations.
for make in makes:
    model = network(3)
    model.compile(optimizer=make(), loss="mse")
    state = hvd.elastic.KerasState(model, epoch=0)
    slots = len(variables_of(model))
    assert slots > len(model.trainable_variables), "the optimizer's variables were not made"
    for commits in (False, True):
        if commits:
            model.train_on_batch(inputs[:8], targets[:8])
            state.commit()
        before = all_of(model)
        model.train_on_batch(inputs[8:16], targets[8:16])
        state.epoch = 7
        assert not any(np.array_equal(a, b) for a, b in zip(before[:2:2], all_of(model)[:2:2]))
        state.restore()
        after = all_of(model)
        assert state.epoch == 0 and len(before) == len(after)
        assert all(np.array_equal(a, b) for a, b in zip(before, after)), (commits, before, after)
    assert len(variables_of(model)) == slots

try:
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op=hvd.Adasum)
    raise SystemExit("Adasum was taken")
except ValueError as error:
    assert "op is Adasum: expected Average or Sum" in str(error), error
try:
    hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), compression="fp16")
    raise SystemExit("a text was taken")
except ValueError as error:
    assert "compression is 'fp16'" in str(error), error

halves = network(1)
half = hvd.Compression.fp16
halves.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=half), loss="mse")
full = network(1)
full.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), loss="mse")
for model in (halves, full):
    model.train_on_batch(inputs[mine], targets[mine])
for a, b in zip(halves.get_weights(), full.get_weights()):
    assert np.allclose(a, b, atol=1e-2)
pairs = zip(halves.get_weights(), full.get_weights())
assert not all(np.array_equal(a, b) for a, b in pairs), "not compressed"
assert equal_everywhere(halves)

if keras.backend.backend() != "jax":  # there the optimizer's own gradient_accumulation_steps does it
    model = network(1)
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), backward_passes_per_step=2),
                  loss="mse")
    before = model.get_weights()
    model.train_on_batch(inputs[mine][:8], targets[mine][:8])
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights()))
    model.train_on_batch(inputs[mine][:8], targets[mine][:8])
    assert not np.array_equal(before[0], model.get_weights()[0]) and equal_everywhere(model)

model = network(10 + r)  # different: the broadcast makes them equal
model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), loss="mse")
history = model.fit(inputs[mine], targets[mine], batch_size=8, epochs=3, verbose=0, callbacks=[
    hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(0.1, 2)])
assert equal_everywhere(model)
losses = hvd.allgather_object(history.history["loss"])
assert losses[0] == losses[-1] and np.isclose(history.history["lr"][-1], 0.1), history.history

kept = network(10 + r)
callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=kept.layers[0].weights)
callback.set_model(kept)
callback.on_batch_end(0)
kernels = hvd.allgather_object([w.tolist() for w in kept.get_weights()])
assert n == 1 or kernels[0][0] != kernels[-1][0] and kernels[0][2] == kernels[-1][2], "local variables stay"

# One variable alone, and the tf.Variable behind a variable of Keras 3.
kernel = kept.layers[0].kernel
for local in (kernel, kernel.value if IS_KERAS_3 and keras.backend.backend() == "tensorflow" else kernel):
    kept.layers[0].kernel.assign(np.full((4, 3), r))
    for callback in (hvd.callbacks.BroadcastGlobalVariablesCallback(0, "", local),
                     hvd.callbacks.BroadcastGlobalVariablesCallback(0)):
        if not callback._local:
            callback.register_local_var(local)
        callback.set_model(kept)
        callback.on_batch_end(0)
        assert np.all(kept.get_weights()[0] == r), "one local variable stays"
try:
    hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=["kernel"])
    raise SystemExit("a text was taken")
except ValueError as error:
    assert "local_variables, entry 0: expected a variable, and not str" in str(error), error

path = os.path.join(sys.argv[1], f"model-{r}.keras")
model.save(path)
loaded = hvd.load_model(path)
assert hasattr(loaded.optimizer, "register_local_var")
assert np.allclose(loaded.predict(inputs[:4], verbose=0), model.predict(inputs[:4], verbose=0), atol=1e-6)

partial = network(1)
partial.compile(optimizer=hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.1),
                                                          local_layers=partial.layers[0]), loss="mse")
partial.train_on_batch(inputs[mine], targets[mine])
kernels = hvd.allgather_object([w.tolist() for w in partial.get_weights()])
assert n == 1 or not np.allclose(kernels[0][0], kernels[-1][0]), "the first layer is each rank's own"
assert np.allclose(kernels[0][2], kernels[-1][2], atol=1e-6), "the second is everybody's"

# Half precision with a loss that is scaled: a gradient of one rank is not finite in the second step, and no
# rank takes it.
keras.mixed_precision.set_global_policy("mixed_float16")
scaler = keras.mixed_precision.LossScaleOptimizer
kinds = {
    "by compile()": lambda first: hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
    "around": lambda first: scaler(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1), op=hvd.Sum)),
    "inside": lambda first: hvd.DistributedOptimizer(scaler(keras.optimizers.SGD(0.1))),
    "inside, a local layer": lambda first: hvd.PartialDistributedOptimizer(
        scaler(keras.optimizers.SGD(0.1)), local_layers=first),
}
if not IS_KERAS_3:
    kinds["around a legacy one"] = lambda first: scaler(
        hvd.DistributedOptimizer(keras.optimizers.legacy.SGD(0.1)))
for kind, make in kinds.items():
    model = network(1)
    model.compile(optimizer=make(model.layers[0]), loss="mse")
    scales = []
    for step in range(4):
        rows = np.array(inputs[mine][:8])
        if step == 1 and r == n - 1:
            rows[0, 0] = np.inf
        before = model.get_weights()
        model.train_on_batch(rows, targets[mine][:8])
        taken = not all(np.array_equal(a, b) for a, b in zip(before, model.get_weights()))
        scale = model.optimizer.dynamic_scale if IS_KERAS_3 else model.optimizer.loss_scale
        scales.append((taken, float(keras.ops.convert_to_numpy(scale) if IS_KERAS_3 else scale)))
    everybody = hvd.allgather_object(scales)
    assert all(other == everybody[0] for other in everybody), (kind, everybody)
    assert not scales[1][0] and scales[3][0] and scales[1][1] < scales[0][1], (kind, scales)
    assert all(np.isfinite(w).all() for w in model.get_weights()), kind

print(f"rank {r} of {n}: all as expected", flush=True)
hvd.shutdown()

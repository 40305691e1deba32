"""Keras and TensorFlow in the words of Horovod's scripts: states, schedules, callbacks, parameters."""

import pytest

from test_tensorflow import BACKENDS, QUIET, chosen, needs_tensorflow

MODEL = """
import numpy as np
import hvd, hvd.keras
from hvd.keras._keras import IS_KERAS_3, keras
hvd.init()

def network(optimizer, **options):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Input((2, )), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse", **options)
    return model

inputs = np.random.default_rng(5).normal(size=(32, 2)).astype("f")
targets = inputs.sum(1, keepdims=True)
"""


@pytest.fixture
def keras(python):
    """keras(backend, source, *arguments): a script that has `network`, `inputs` and `targets`."""

    def run(backend, source, *arguments):
        import textwrap

        return python(MODEL + textwrap.dedent(source), *arguments,
                      environment={**QUIET, **chosen(backend)}, timeout=200)

    return run


KINDS = {
    "KerasState": "hvd.keras.elastic.KerasState(network('sgd'), value=Odd())",
    "TensorFlowKerasState": "tf_elastic().TensorFlowKerasState(network('sgd'), value=Odd())",
    "TensorFlowState": "tf_elastic().TensorFlowState([tensorflow().Variable(1.0)], value=Odd())",
}


@needs_tensorflow
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_has_the_codec_of_the_program(keras, kind):
    """JSON refuses an object of any class; set_codec("pickle") is for states of each framework."""
    keras("tensorflow", f"""
        import importlib
        tensorflow = lambda: importlib.import_module("tensorflow")
        tf_elastic = lambda: importlib.import_module("hvd.tensorflow.elastic")

        class Odd:
            number = 1

        try:
            {KINDS[kind]}.save()
            raise SystemExit("JSON took it")
        except hvd.InvalidError as error:
            assert "Odd" in str(error), error
        hvd.set_codec("pickle")
        state = {KINDS[kind]}
        state.value.number = 7
        state.save()
        state.value.number = 8
        state.restore()
        assert state.value.number == 7
        """)


@needs_tensorflow
def test_an_error_of_a_node_replaces_no_other(python):
    """Nodes of numpy_function hand on texts alone: an error that was caught is not a later one's cause."""
    python("""
        import tensorflow as tf, hvd.tensorflow as hvd
        hvd.init()
        wrong = [tf.function(lambda root=root: hvd.broadcast(tf.ones(2), root, name=f"of {root}"))
                 for root in (7, 8, 9)]

        def ends(last):
            @hvd.elastic.run
            def train(state):
                for node in wrong[:2]:
                    try:
                        node()
                        raise SystemExit("it was taken")
                    except tf.errors.OpError:
                        pass
                last()

            try:
                train(hvd.elastic.TensorFlowState([tf.Variable(1.0)]))
            except Exception as error:
                return error

        def mine(error):
            def last():
                raise error
            return last

        for error in (ValueError("mine"), RuntimeError("mine"), tf.errors.UnknownError(None, None, "mine")):
            assert ends(mine(error)) is error
        for node, root in zip(wrong, (7, 8, 9)):
            error = ends(node)
            assert type(error) is hvd.InvalidError and str(root) in str(error), error
        """, environment={**QUIET, "HVD_TENSORFLOW_OP": "0"}, timeout=200)


SCHEDULES = """
class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates, self.weights = [], []

    def on_batch_end(self, batch, logs=None):
        hvd.keras._keras.live(self.model)
        rate = self.model.optimizer.learning_rate
        self.rates.append(float(keras.ops.convert_to_numpy(rate) if IS_KERAS_3 else rate.numpy()))
        self.weights.append(float(self.model.get_weights()[0][0, 0]))

def follow(optimizer, callback, epochs, steps=4):
    '''The rate and the weight after each batch. The gradient is 1 in all of them.'''
    model = keras.Sequential([keras.layers.Input((1, )),
                              keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    mean = keras.ops.mean if IS_KERAS_3 else keras.backend.mean
    model.compile(optimizer=optimizer, loss=lambda expected, found: mean(found))
    seen, ones = Rates(), np.ones((4 * steps, 1), "f")
    history = model.fit(ones, ones, batch_size=4, epochs=epochs, verbose=0, callbacks=[callback, seen])
    assert np.allclose(history.history["lr"], seen.rates[steps - 1::steps])
    return seen
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_schedules_of_learning_rates(keras, backend):
    """Horovod's: a constant is a base of exponential decay; once an epoch or at each batch; some epochs."""
    keras(backend, SCHEDULES + """
Schedule = hvd.keras.callbacks.LearningRateScheduleCallback
sgd = lambda: hvd.keras.DistributedOptimizer(keras.optimizers.SGD(1.0))

def check(callback, rate, epochs=3):
    expected = [rate(epoch, epoch + batch / 4) for epoch in range(epochs) for batch in range(4)]
    found = follow(sgd(), callback, epochs).rates
    assert np.allclose(found, expected), (found, expected)

check(Schedule(0.8, 0.5), lambda epoch, _: 0.8 * 0.5**epoch)
check(Schedule(0.8, 0.5, staircase=False), lambda _, exact: 0.8 * 0.5**exact)
check(Schedule(0.8, 0.5, 1), lambda epoch, _: 1.0 if epoch == 0 else 0.8 * 0.5**(epoch - 1))
check(Schedule(0.8, 0.5, 1, 2, staircase=False),
      lambda epoch, exact: 1.0 if epoch == 0 else 0.8 * 0.5**(min(exact, 1.75) - 1))
check(Schedule(0.8, lambda epoch: 1 / (1 + epoch)), lambda epoch, _: 0.8 / (1 + epoch))
check(Schedule(0.8, lambda epoch: 1 / (1 + epoch), staircase=False), lambda _, exact: 0.8 / (1 + exact))
check(Schedule(0.8, 0.5, staircase=False, steps_per_epoch=8),
      lambda epoch, exact: 0.8 * 0.5**(epoch + (exact - epoch) / 2))

hvd.keras.callbacks.plain.size = lambda: 4  # of four ranks
check(hvd.keras.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2),
      lambda _, exact: 0.8 / 4 * (min(exact + 1 / 4, 2) * 3 / 2 + 1))
for wrong in (0, None):
    try:
        Schedule(wrong, 0.5)
        raise SystemExit("it was taken")
    except ValueError as error:
        assert f"initial_lr is {wrong}" in str(error), error
""")


@pytest.mark.parametrize("backend", BACKENDS)
def test_momentum_goes_along_with_the_rate(keras, backend):
    """Horovod's momentum correction: m * new / old in the one batch that has a new rate."""
    keras(backend, SCHEDULES + """
kinds = [keras.optimizers.SGD] if IS_KERAS_3 else [keras.optimizers.SGD, keras.optimizers.legacy.SGD]
for kind in kinds:
    for corrected in (True, False):
        for staircase in (True, False):
            callback = hvd.keras.callbacks.LearningRateScheduleCallback(
                0.8, 0.25, staircase=staircase, momentum_correction=corrected)
            seen = follow(hvd.keras.DistributedOptimizer(kind(0.1, momentum=0.5)), callback, 3)
            weight, velocity, before, expected = 0.0, 0.0, 0.1, []
            for batch in range(12):
                rate = 0.8 * 0.25**(batch // 4 if staircase else batch / 4)
                velocity = velocity * 0.5 * (rate / before if corrected else 1) - rate
                weight, before = weight + velocity, rate
                expected.append(weight)
            assert np.allclose(seen.weights, expected, atol=1e-5), (kind, corrected, seen.weights, expected)
""")


WITH_TENSORFLOW = [case for case in BACKENDS if case.values[0] in ("tensorflow", "tf_keras")]


@pytest.mark.parametrize("backend", WITH_TENSORFLOW)
def test_horovods_parameters_of_keras(keras, backend, tmp_path):
    """Where Horovod has them, by position too."""
    keras(backend, """
        import os, sys
        hk = hvd.keras
        best = hk.callbacks.BestModelCheckpoint("loss", 0, True, "min", 3)
        assert (best.monitor, best.save_weights_only, best.save_freq) == ("loss", True, 3)
        model = network(hk.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), "mine", local_layers=[]))
        assert model.optimizer._hvd_reduction.prefix == "mine"
        layer = model.layers[0]
        for layers in (layer, [layer]):
            partial = hk.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), local_layers=layers)
            assert len(partial._hvd_reduction.local) == 2
        for wrong in (lambda: hk.PartialDistributedOptimizer(keras.optimizers.SGD(0.1), layer),
                      lambda: hk.callbacks.BestModelCheckpoint("loss", 0, "min")):
            try:
                wrong()
                raise SystemExit("it was taken")
            except TypeError as error:
                assert "local_layers=" in str(error) or "save_weights_only is 'min'" in str(error), error

        def fit(callback):  # two epochs of eight batches
            model.fit(inputs, targets, batch_size=4, epochs=2, verbose=0, callbacks=[callback])

        best = hk.callbacks.BestModelCheckpoint("loss", mode="min")
        try:
            fit(best)
            raise SystemExit("it has no place")
        except hvd.InvalidError as error:
            assert "filepath is None" in str(error), error
        rank = hk.callbacks.plain.rank
        places = [os.path.join(sys.argv[1], name + ".keras") for name in "abcd"]
        for place, other, often in zip(places, (0, 1, 0, 1), ("epoch", "epoch", 12, 12)):
            hk.callbacks.plain.rank = lambda: other
            best = hk.callbacks.BestModelCheckpoint("loss", mode="min", save_freq=often)
            best.filepath = place
            fit(best)
            assert os.path.exists(place) == (other == 0), (place, other)
        hk.callbacks.plain.rank = rank
        loaded = hk.load_model(places[0], None, None, None, False)
        assert hasattr(loaded.optimizer, "register_local_var")
        assert hasattr(hk.load_model(places[0], legacy_opts=True).optimizer, "register_local_var")
        """, tmp_path)


@pytest.mark.parametrize("backend", WITH_TENSORFLOW)
@pytest.mark.parametrize("average", [False, True])
def test_gradients_of_several_passes(keras, backend, average):
    """Their sum, or their mean with average_aggregated_gradients. TensorFlow 1's optimizers do it, too."""
    keras(backend, """
        import sys
        import tensorflow as tf, hvd.tensorflow as ht
        average = sys.argv[1] == "True"
        options = dict(backward_passes_per_step=3, average_aggregated_gradients=average)
        kinds = [keras.optimizers.SGD] if IS_KERAS_3 else [keras.optimizers.SGD, keras.optimizers.legacy.SGD]
        kinds.append(tf.compat.v1.train.GradientDescentOptimizer)
        for kind in kinds:
            optimizer, variable = ht.DistributedOptimizer(kind(1.0), **options), tf.Variable([0.0, 0.0])
            for step, expected in enumerate([0, 0, 6, 6, 6, 21]):
                optimizer.apply_gradients([(tf.fill([2], step + 1.0), variable)])
                expected = -expected / (3 if average else 1)
                assert np.allclose(variable, expected), (kind, step, variable, expected)
        """, average)


@needs_tensorflow
def test_horovods_parameters_of_tensorflow(python):
    python("""
        import tensorflow as tf, hvd, hvd.tensorflow as ht
        hvd.init()
        # ..., process_set, ignore_name_scope, prescale_factor, postscale_factor
        shared = ht.reducescatter(tf.ones([2]), "", ht.Compression.none, ht.Sum, "a", hvd.global_process_set,
                                  True, 3.0, 5.0)
        assert shared.numpy().tolist() == [15, 15], shared
        (shared,) = ht.grouped_reducescatter([tf.ones([2])], "", ht.Compression.none, ht.Sum,
                                             hvd.global_process_set, 3.0, 5.0)
        assert shared.numpy().tolist() == [15, 15], shared
        number = tf.function(lambda: [ht.rank_op("r"), ht.local_rank_op("l"), ht.local_size_op("m"),
                                      ht.size_op(0, "s"), ht.process_set_included_op(0, "p")])
        assert [int(n) for n in number()] == [0, 0, 1, 1, 1]
        alone = hvd.add_process_set([0])
        assert int(ht.rank_op(process_set=alone)) == 0

        v, w = tf.Variable([1.0]), tf.Variable([2.0])
        def record():
            with tf.GradientTape() as tape:
                loss = 3.0 * v + 5.0 * w
            tape = ht.DistributedGradientTape(tape)
            tape.register_local_source(w)
            return tape, loss
        tape, loss = record()
        gradients = tape.gradient(loss, [v, w], use_generic_names=True)
        assert [float(g[0]) for g in gradients] == [3, 5]
        tape, loss = record()
        local, others = tape.get_local_and_global_gradients(loss, [v, w], None, True)
        ((source, gradient),), ((other, second),) = local, others
        assert source is w and float(gradient[0]) == 5 and other is v and float(second[0]) == 3

        assert [ht.check_num_rank_power_of_2(n) for n in range(6)] == [False, True, True, False, True, False]
        for op, average, meant in ((None, None, ht.Average), (None, False, ht.Sum), (ht.Max, None, ht.Max)):
            assert ht.handle_average_backwards_compatibility(op, average) == meant
        """, environment=QUIET, timeout=200)


@pytest.mark.parametrize("backend", WITH_TENSORFLOW)
def test_the_batch_of_an_epoch_goes_on_after_a_reset(keras, backend):
    """Where fit() is given the rest of an epoch, and where it is given all of it again."""
    keras(backend, """
        class State:
            batch = 0

        class Seen(keras.callbacks.Callback):
            def on_batch_end(self, batch, logs=None):
                seen.append(state.batch)
                if len(seen) in resets:
                    raise InterruptedError

        state, model = State(), network("sgd")

        def train(rest):
            while True:
                steps = 8 - (state.batch if rest else 0)
                callbacks = [hvd.keras.elastic.UpdateBatchStateCallback(state), Seen()]
                try:
                    return model.fit(inputs[:4 * steps], targets[:4 * steps], batch_size=4, verbose=0,
                                     callbacks=callbacks)
                except InterruptedError:
                    pass

        seen, resets = [], (3, 5)
        train(True)  # the batch that a reset comes in is trained again
        assert seen == [0, 1, 2, 2, 3, 3, 4, 5, 6, 7] and state.batch == 0, seen
        seen, resets = [], (3,)
        train(False)
        assert seen == [0, 1, 2, *range(2, 10)] and state.batch == 0, seen
        """)

"""Keras and TensorFlow in the words of Horovod's scripts: codecs of states, schedules, callbacks, signatures."""

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

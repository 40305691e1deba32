"""A worker of test_tensorflow.py: model.fit() in an elastic run, of which one rank is killed, and a host
added.

    keras_elastic_worker.py EPOCHS STEPS TEST [WORKERS]: TEST kill, raise or grow; WORKERS: how many the job
    grows to.
"""

import json
import os
import signal
import sys

import numpy as np

import hvd.keras as hvd
from hvd.keras._keras import IS_KERAS_3, keras  # tf_keras, with TF_USE_LEGACY_KERAS

epochs, steps, test = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
wanted = int(sys.argv[4]) if len(sys.argv) > 4 else 0


def say(event, **fields):
    print(json.dumps({"event": event, "pid": os.getpid(), **fields}), flush=True)


MINE = KeyError("of a callback")


class Faults(keras.callbacks.Callback):
    """Counts the steps, and is killed or waits for a new host in the middle of the second epoch."""

    def on_batch_end(self, batch, logs=None):
        state.steps += 1
        if state.epoch == 1 and state.batch == steps // 2:
            if test == "kill" and hvd.generation() == 1 and hvd.rank() == 1:
                say("ready")
                signal.pause()  # until it is killed; the others wait for it in their next step
            if test == "raise" and hvd.generation() == 1 and hvd.rank() == 1:
                raise MINE
            while test == "grow" and hvd.size() < wanted:
                state.commit()  # until the new host is agreed on


@hvd.elastic.run
def train(state):
    say("train", rank=hvd.rank(), size=hvd.size(), epoch=state.epoch, batch=state.batch, steps=state.steps)
    data = np.random.default_rng(hvd.rank())
    while state.epoch < epochs:
        left = steps - state.batch
        inputs = data.normal(size=(4 * left, 4)).astype("f")
        state.model.fit(
            inputs, inputs.sum(1, keepdims=True), batch_size=4, verbose=0, initial_epoch=0, epochs=1,
            callbacks=[
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.UpdateEpochStateCallback(state),
                Faults(),
                hvd.elastic.CommitStateCallback(state, batches_per_commit=2)
            ])
    return state.steps


hvd.init()
keras.utils.set_random_seed(7)
model = keras.Sequential(
    [keras.layers.Input((4, )),
     keras.layers.Dense(3, activation="tanh"),
     keras.layers.Dense(1)])
kind = keras.optimizers.Adam if IS_KERAS_3 else keras.optimizers.legacy.Adam
model.compile(optimizer=hvd.DistributedOptimizer(kind(0.01)), loss="mse")
state = hvd.elastic.KerasState(model, epoch=0, batch=0, steps=0)
try:
    done = train(state)
except KeyError as error:
    say("raised", same=error is MINE)
    sys.exit(7)
weights = [w.tolist() for w in model.get_weights()]
everybody = hvd.allgather_object(weights)
say("end", steps=done, iterations=int(model.optimizer.iterations), epoch=state.epoch,
    agree=all(other == weights for other in everybody), recoveries=[r.reason for r in hvd.recoveries()])
hvd.shutdown()

"""A worker of test_horovod_examples.py, in the shape of Horovod's elastic examples: horovod_examples.py
FRAMEWORK FILE

It trains on made-up data with the package `horovod` and nothing of hvd's own. The worker of rank 1 kills
itself once (FILE tells that it has); those left train on alone until another one has joined, and both to the
end.
"""

import os
import signal
import sys
import time

import numpy as np

FRAMEWORK, ONCE = sys.argv[1:]
random = np.random.default_rng(7)
images = random.normal(size=(64, 8)).astype("float32")
labels = (images[:, 0] > 0).astype("int64") + (images[:, 1] > 0)
STEPS = 12


def perhaps_die(rank, step):
    if rank == 1 and step == 4 and not os.path.exists(ONCE):
        open(ONCE, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


def pytorch():
    import torch

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Average)
    data = torch.utils.data.TensorDataset(torch.tensor(images), torch.tensor(labels))
    sampler = hvd.elastic.ElasticSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)

    @hvd.elastic.run
    def train(state):
        while state.total < STEPS or not state.joined:
            sampler.set_epoch(state.epoch)
            for state.batch, (inputs, targets) in enumerate(loader):
                perhaps_die(hvd.rank(), state.total)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                sampler.record_batch(state.batch, 8)
                advance(hvd, state)
                state.commit()
            state.epoch += 1

    def on_state_reset():
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * hvd.size()

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=1, batch=0, total=0, alone=False,
                                   joined=False)
    state.register_reset_callbacks([on_state_reset])
    train(state)
    report(hvd, state.total, optimizer.param_groups[0]["lr"] / hvd.size(),
           sum(p.sum().item() for p in model.parameters()))


def tensorflow2():
    import tensorflow as tf

    import horovod.tensorflow as hvd

    hvd.init()
    tf.random.set_seed(3)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(64).batch(8)
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(3)])
    loss = tf.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.optimizers.Adam(0.001 * hvd.size())

    @tf.function
    def step(inputs, targets, allreduce=True):
        with tf.GradientTape() as tape:
            value = loss(targets, model(inputs, training=True))
        if allreduce:
            tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    for inputs, targets in dataset.take(1):
        step(inputs, targets, allreduce=False)

    @hvd.elastic.run
    def train(state):
        for inputs, targets in dataset:
            if state.total >= STEPS and state.joined:
                break
            perhaps_die(hvd.rank(), state.total)
            step(inputs, targets)
            advance(hvd, state)
            state.commit()

    def on_state_reset():
        optimizer.learning_rate.assign(0.001 * hvd.size())

    state = hvd.elastic.TensorFlowKerasState(model, optimizer, total=0, alone=False, joined=False)
    state.register_reset_callbacks([on_state_reset])
    train(state)
    report(hvd, state.total,
           float(optimizer.learning_rate) / hvd.size(), sum(float(tf.reduce_sum(v)) for v in model.variables))


def keras():
    import tensorflow as tf

    import horovod.tensorflow.keras as hvd

    hvd.init()
    tf.random.set_seed(3)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).repeat().shuffle(64).batch(8)
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(3)])
    optimizer = hvd.DistributedOptimizer(tf.optimizers.Adam(0.001 * hvd.size()))
    model.compile(loss=tf.losses.SparseCategoricalCrossentropy(from_logits=True), optimizer=optimizer)
    model.fit(dataset, steps_per_epoch=1, epochs=1,
              verbose=0)  # a newcomer meets the others' reset callback in it
    state = hvd.elastic.KerasState(model, batch=0, epoch=0, total=0, alone=False, joined=False)

    def on_state_reset():
        state.model.optimizer.learning_rate.assign(0.001 * hvd.size())
        state.model.fit(dataset, steps_per_epoch=1, epochs=1, verbose=0)

    state.register_reset_callbacks([on_state_reset])

    class Progress(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            perhaps_die(hvd.rank(), state.total)

        def on_train_batch_end(self, batch, logs=None):
            advance(hvd, state)

        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = state.total >= STEPS and state.joined

    callbacks = [
        Progress(),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state)
    ]

    @hvd.elastic.run
    def train(state):
        state.model.fit(dataset, steps_per_epoch=4, epochs=100000, callbacks=callbacks, verbose=0)

    train(state)
    report(hvd, state.total, float(model.optimizer.learning_rate) / hvd.size(),
           sum(float(tf.reduce_sum(v)) for v in model.trainable_variables))


def advance(hvd, state):
    """Once one has been alone, and another one has joined it, they train together for a while before the
    end."""
    state.total += 1
    if state.alone and hvd.size() == 2 and not state.joined:
        state.joined, state.total = True, STEPS - 4
    if hvd.size() == 1:
        state.alone = True
        time.sleep(0.05)  # it need not do more than wait


def report(hvd, total, rate, weights):
    everybodys = hvd.allgather_object(weights)
    assert np.allclose(everybodys, everybodys[0], rtol=1e-6), everybodys
    print(f"trained {total} {hvd.size()} {rate:.6f}", flush=True)


{"pytorch": pytorch, "tensorflow2": tensorflow2, "keras": keras}[FRAMEWORK]()

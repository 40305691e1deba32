"""A TensorFlow script for Horovod as a contender of horovod_bench, like ranks_horovod_torch.py. What is
measured runs in a tf.function, as steps do, but for the broadcast of variables and the commit."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402, which reads the variable

import horovod.tensorflow as hvd  # noqa: E402
from served import Steps, by_name, serve  # noqa: E402

GROUP, VARIABLES = 200, 160


def mlp(width):
    return tf.keras.Sequential([
        tf.keras.layers.Dense(width, activation="relu", input_shape=(784, )),
        tf.keras.layers.Dense(width, activation="relu"),
        tf.keras.layers.Dense(10)
    ])


def step_of(model, optimizer):
    """A step in a tf.function, made on every call."""
    inputs = tf.random.normal((32, 784))
    targets = tf.random.uniform((32, ), maxval=10, dtype=tf.int32)

    @tf.function
    def train():
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, model(inputs, training=True))
            loss = tf.reduce_mean(losses)
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    return train


def allreduce(size):
    tensor = tf.ones(size // 4)
    reduced = tf.function(lambda: hvd.allreduce(tensor, name="allreduce", op=hvd.Sum))
    return lambda turn: reduced()


def grouped(size):
    tensors = [tf.ones(size // 4 // GROUP) for _ in range(GROUP)]
    # As arguments: Horovod asks for names, which tensors from outside a function have not.
    reduced = tf.function(lambda given: hvd.grouped_allreduce(given, op=hvd.Average))
    return lambda turn: reduced(tensors)


def variables(size):
    tensors = [tf.Variable(tf.fill((size // 4 // VARIABLES, ), float(hvd.rank()))) for _ in range(VARIABLES)]

    def call(turn):
        hvd.broadcast_variables(tensors, root_rank=0)
        assert tensors[0][0] == 0

    return call


def step(width):
    train = step_of(mlp(width), tf.keras.optimizers.SGD(0.01, momentum=0.9))
    return lambda turn: train()


def commit(width):
    """With a step before: Horovod's commit keeps TensorFlow's tensors, so that the next step copies what it
    writes."""
    model, optimizer = mlp(width), tf.keras.optimizers.Adam()
    optimizer.apply_gradients([(tf.zeros_like(each), each) for each in model.trainable_variables])
    train = step_of(model, optimizer)
    state = hvd.elastic.TensorFlowKerasState(model=model, optimizer=optimizer, batch=0)

    def call(turn):
        train()
        state.commit()

    return call


def train_elastically():
    steps = Steps()
    model, optimizer = mlp(256), tf.keras.optimizers.SGD(0.01)
    made = {}  # a function for each generation, as Horovod's documentation has it

    @hvd.elastic.run
    def train(state):
        one_step = made.setdefault(hvd.size(), step_of(model, optimizer))
        while True:
            one_step()
            state.batch += 1
            steps.made(hvd.size(), hvd.rank())
            stop = tf.constant([float(steps.enough())])
            if hvd.allreduce(stop, name="stop", op=hvd.Sum)[0] > 0:
                return
            state.commit()

    optimizer.apply_gradients([(tf.zeros_like(each), each) for each in model.trainable_variables])
    train(hvd.elastic.TensorFlowKerasState(model=model, optimizer=optimizer, batch=0))


def main():
    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    if sys.argv[1:] == ["elastic"]:
        train_elastically()
    else:
        serve(hvd.rank(), lambda: hvd.allreduce(tf.zeros(1), name="barrier"),
              by_name(allreduce, grouped, variables, step, commit))
    hvd.shutdown()


if __name__ == "__main__":
    main()

"""What test_ray.py and test_spark.py run as jobs. It imports nothing of the tests, which workers could not.
"""

import os


def total(plus=0):
    import hvd

    hvd.init()
    return hvd.rank(), float(hvd.allreduce(bytearray([hvd.rank() + 1]), op=hvd.Sum)[0]) + plus, os.getpid()


def kept(_):
    return os.getpid()


class Kept:
    def __init__(self, value, more=0, by=1):
        self.value = (value + more) // by


def add_one(kept):
    kept.value += 1
    return kept.value


def fails():
    import hvd

    hvd.init()
    raise KeyError(f"mine of rank {hvd.rank()}")


def elastic(mark, steps):
    """Counts to `steps` with the others; who is rank 1 at step 3 dies once."""
    import hvd

    hvd.init()
    state = hvd.elastic.ObjectState(step=0)

    @hvd.elastic.run
    def train(state):
        while state.step < steps:
            if state.step == 3 and hvd.rank() == 1 and not os.path.exists(mark):
                open(mark, "w").close()
                os.kill(os.getpid(), 9)
            hvd.allreduce(bytearray([1]), name="step", op=hvd.Sum)
            state.step += 1
            state.commit()
        return state.step

    return train(state), hvd.generation()

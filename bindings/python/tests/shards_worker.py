"""A worker of test_shards.py: a vector of which each rank has a range, and one of three ranks is killed.

    shards_worker.py COPIES STEPS: element i is i + step after each step.
"""

import json
import os
import signal
import sys

import numpy as np

import hvd

copies, steps = int(sys.argv[1]), int(sys.argv[2])
ELEMENTS = 1000


def say(event, **fields):
    print(json.dumps({"event": event, "pid": os.getpid(), **fields}), flush=True)


def expected():
    return np.arange(shard.offset, shard.offset + len(shard)) + float(state.step)


def load(sentence):
    """The program's own checkpoint is that of step 0."""
    say("lost", sentence=sentence, rank=hvd.rank(), size=hvd.size())
    state.step = 0
    shard.array[:] = expected()


hvd.init()
state = hvd.elastic.ArrayState(step=0)
shard = state.add_shard("m", ELEMENTS, "float64", copies=copies)
shard.array[:] = expected()
state.on_lost(load)


@hvd.elastic.run
def train(state):
    offset, length = hvd.elastic.shard_range(ELEMENTS, hvd.rank(), hvd.size())
    same = (shard.offset, len(shard)) == (offset, length) and np.array_equal(shard.array, expected())
    say("train", rank=hvd.rank(), size=hvd.size(), step=state.step, same=same)
    while state.step < steps:
        shard.array[:] += 1
        state.step += 1
        state.commit()
        if state.step == 3 and hvd.generation() == 1:
            if hvd.rank() == 1:
                say("ready")
                signal.pause()  # until it is killed; the others wait for it
            hvd.barrier()


train(state)
whole = hvd.allgather(shard.array)
say("end", size=hvd.size(), step=state.step, same=np.array_equal(whole, np.arange(ELEMENTS) + float(steps)))
hvd.shutdown()

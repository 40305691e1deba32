"""A worker of test_jobs.py: adds up each sample's number, so that the end tells whether each counted once an
epoch.

    elastic_worker.py KIND EPOCHS SAMPLES TEST [WORKERS]: KIND numpy or torch; TEST kill, grow or plain; see train().
"""

import json
import os
import signal
import sys
import time

kind, epochs, samples, test = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
wanted = int(sys.argv[5]) if len(sys.argv) > 5 else 0

if kind == "torch":
    import torch

    import hvd.torch as hvd
else:
    import numpy as np

    import hvd


def say(event, **fields):
    print(json.dumps({"event": event, "pid": os.getpid(), **fields}), flush=True)


def reduce_of_numpy(state, batch):
    mine = np.array([float(sum(batch.indices))])
    state.total += hvd.allreduce(mine, "numbers", hvd.Sum)


def reduce_of_torch(state, batch):
    """The gradient of -w * numbers by w is -numbers: SGD with rate 1 adds them to w."""
    state.optimizer.zero_grad()
    numbers = torch.tensor([[float(sum(batch.indices))]], dtype=torch.float64)
    (-state.model(numbers)).sum().backward()
    state.optimizer.step()


def told_as_horovod_tells(kind):
    """A class with overrides of on_reset and on_hosts_updated, as scripts for Horovod have them."""

    class Told(kind):
        def on_reset(self):
            say("on_reset", size=hvd.size())
            super().on_reset()

        def reset(self):
            say("reset of the state", size=hvd.size())

        def on_hosts_updated(self, timestamp, update_res):
            super().on_hosts_updated(timestamp, update_res)
            say("on_hosts_updated", recent=abs(time.time() - timestamp) < 3600,
                epoch=update_res.membership_epoch)

    return Told


def make_state():
    sampler = hvd.elastic.ElasticSampler(samples, seed=3, batch_size=4, padding="none")
    values = {"sampler": sampler, "epoch": 0, "log": []}
    if kind == "numpy":
        return told_as_horovod_tells(hvd.elastic.ArrayState)(total=np.zeros(1), **values)
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=hvd.Sum)
    return told_as_horovod_tells(hvd.elastic.TorchState)(model=model, optimizer=optimizer, **values)


@hvd.elastic.run
def train(state):
    say("train", rank=hvd.rank(), size=hvd.size(), worker=hvd.membership().worker, epoch=state.epoch,
        processed=state.sampler.info().processed)
    for _ in iter(lambda: state.epoch < epochs, False):
        for batch in state.sampler.batches():
            step = reduce_of_numpy if kind == "numpy" else reduce_of_torch
            step(state, batch)
            state.sampler.record(batch)
            done = state.sampler.info().processed
            if state.epoch == 1 and done > samples // 2:
                if test == "kill" and hvd.generation() == 1 and hvd.rank() == 1:
                    say("ready")
                    signal.pause()  # until it is killed; the others wait for it in their next operation
                while test == "grow" and hvd.size() < wanted:
                    while hvd.rank() == 0 and state._host_messages.empty():  # as Horovod's own scripts do
                        time.sleep(0.01)
                    state.commit()  # until the new host is agreed on
            if done % 3 == 0:
                state.commit()
        state.epoch += 1
        state.log = state.log + [hvd.size()]
        state.sampler.set_epoch(state.epoch)
    return state.log


hvd.init()
state = make_state()
state.register_reset_callbacks([lambda: say("reset", size=hvd.size())])
log = train(state)
total = float(state.total[0]) if kind == "numpy" else float(state.model.weight)
everybody = hvd.allgather_object(total)
say("end", total=total, agree=len(set(everybody)) == 1, log=log,
    recoveries=[r.reason for r in hvd.recoveries()])
hvd.shutdown()

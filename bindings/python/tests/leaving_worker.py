"""A worker of test_leaving.py: trains until two are left; SIGTERM makes it leave."""

import json
import os

import hvd


def say(event, **values):
    print(json.dumps({"event": event, "pid": os.getpid(), **values}), flush=True)


@hvd.elastic.run
def train(state):
    say("train", rank=hvd.rank(), size=hvd.size(), step=state.step)
    while hvd.size() > 2 or state.step < state.until:
        hvd.barrier()
        state.step += 1
        if hvd.size() == 2 and state.until == 0:
            state.until = state.step + 20
        say("step", step=state.step)
        state.commit()
    return "complete"


hvd.init()
undo = hvd.elastic.leave_on_signal()
state = hvd.elastic.ObjectState(step=0, until=0)
result = train(state)
say("end", result=result, left=hvd.has_left(), step=state.step)
hvd.shutdown()
undo()

"""A worker of recovery_bench in Python: what recovery_bench_worker.c does, on NumPy arrays."""

import importlib
import json
import os
import time

import numpy as np

import hvd
import hvd.elastic

GRADIENT_FLOATS, REPORT_EVERY, COMMIT_EVERY = 1 << 14, 50, int(os.environ.get("HVD_BENCH_COMMIT_EVERY", "20"))
STATE_FLOATS = max(int(os.environ.get("HVD_BENCH_STATE_MIB", "4")) << 18, GRADIENT_FLOATS)


def say(**event):
    print(json.dumps(event), flush=True)


def steps(state, gradient):
    generation = hvd.membership().generation
    done = 0
    while not (generation > 1 and done == COMMIT_EVERY):
        hvd.allreduce_(gradient, "gradient")
        if generation > 1 and done == 0:
            say(first=time.clock_gettime_ns(time.CLOCK_MONOTONIC), generation=generation)
        state.weights[:GRADIENT_FLOATS] += np.float32(0.01) * gradient
        state.step[0] += 1
        if hvd.rank() == 0 and state.step[0] % REPORT_EVERY == 0:
            say(step=int(state.step[0]), generation=generation)
        if state.step[0] % COMMIT_EVERY == 0:
            state.commit()
        done += 1


@hvd.elastic.run
def train(state, gradient):
    try:
        steps(state, gradient)
    except hvd.HorovodInternalError:
        say(holds=state.revision)
        raise


def main():
    if os.environ.get("HVD_BENCH_IMPORT"):
        importlib.import_module(os.environ["HVD_BENCH_IMPORT"])
    weights = np.ones(STATE_FLOATS, np.float32)
    hvd.init()
    holds = hvd.rank() == int(os.environ.get("HVD_BENCH_MEMORY_RANK", "-1"))
    ballast = np.ones(int(os.environ.get("HVD_BENCH_MEMORY_MIB", "0")) << 20 if holds else 0, np.uint8)
    say(pid=os.getpid(), rank=hvd.rank())
    state = hvd.elastic.ArrayState(weights=weights, step=np.zeros(1, np.int64))
    train(state, np.zeros(GRADIENT_FLOATS, np.float32))
    for r in hvd.recoveries()[-1:]:
        say(
            recovery={
                "began_at": r.began_at_ns, "abort": r.abort_ns, "restore": r.restore_ns,
                "forming": r.forming_ns, "connecting": r.connecting_ns, "sync": r.sync_ns,
                "total": r.total_ns, "sync_bytes": r.sync_bytes, "attempts": r.attempts
            })
    hvd.shutdown()
    del ballast


if __name__ == "__main__":
    main()

"""A worker of growth_bench in Python: what growth_bench_worker.c does, on NumPy arrays."""

import json
import os
import time

import numpy as np

import hvd
import hvd.elastic

TENSORS, GRADIENT_FLOATS, AFTER = 32, 1 << 14, 40


def number(name, otherwise):
    return int(os.environ.get("HVD_BENCH_" + name, "") or otherwise)


CHANGE, COMMIT_EVERY = number("CHANGE", TENSORS), number("COMMIT_EVERY", 20)
FIRST_SIZE, LAST_SIZE, REPLACED = number("FIRST_SIZE", 2), number("LAST_SIZE", 4), number("REPLACED", 0)
left_at, durations = None, []


def say(**event):
    print(json.dumps(event), flush=True)


def steps(state, gradient):
    global left_at
    size, generation = hvd.size(), hvd.membership().generation
    last = generation > 1 if REPLACED else size >= LAST_SIZE
    began, done = time.monotonic_ns(), 0
    while not (last and done == AFTER):
        for _ in range(40):
            gradient *= np.float32(0.999)
            gradient += np.float32(0.001)
        hvd.allreduce_(gradient, "gradient")
        if done == 0 and left_at is not None:
            now = time.monotonic_ns()
            say(stop=now - left_at, size=size, now=now)
            left_at = None
        step = int(state.step[0])
        for tensor in range(CHANGE):
            weights = state.weights[(step + tensor) % TENSORS]
            weights[step % len(weights)] += np.float32(1)
        state.step[0] += 1
        if state.step[0] % COMMIT_EVERY == 0:
            state.commit()
        now = time.monotonic_ns()
        if size == FIRST_SIZE and done > 0 and generation == 1:
            durations.append(now - began)
        began = now
        if hvd.rank() == 0 and state.step[0] % 50 == 0:
            say(step=int(state.step[0]), size=size)
        done += 1


@hvd.elastic.run
def train(state, gradient):
    global left_at
    try:
        steps(state, gradient)
    except (hvd.HorovodInternalError, hvd.HostsUpdatedInterrupt):
        left_at = time.monotonic_ns()
        raise


def main():
    floats = max((number("MEMORY_MIB", 512) << 18) // TENSORS, 256)
    weights = [np.zeros(floats, np.float32) for _ in range(TENSORS)]
    for tensor in weights:
        tensor[::1024] = np.arange(0, floats, 1024) % 1000
    hvd.init()
    say(pid=os.getpid(), rank=hvd.rank())
    state = hvd.elastic.ArrayState(weights=weights, step=np.zeros(1, np.int64))
    train(state, np.zeros(GRADIENT_FLOATS, np.float32))
    factors = np.arange(0, floats, 1021) % 97 + 1
    say(sum=float(sum(float((tensor[::1021] * factors).sum()) for tensor in weights)), at=int(state.step[0]))
    for r in hvd.recoveries()[:1]:
        say(spares=r.spares)
        say(
            recovery={
                "forming": r.forming_ns, "connecting": r.connecting_ns, "sync": r.sync_ns,
                "total": r.total_ns, "sync_bytes": r.sync_bytes
            })
    if durations:
        durations.sort()
        say(steps=len(durations), median=durations[len(durations) // 2],
            p99=durations[len(durations) * 99 // 100], longest=durations[-1])
    hvd.shutdown()


if __name__ == "__main__":
    main()

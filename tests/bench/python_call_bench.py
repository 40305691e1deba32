"""What a call from Python costs over one from C: allreduces of 8 B, groups of 200 tensors, checks for host
updates.

hvdrun -np 2 -H localhost:2 -- python tests/bench/python_call_bench.py
build/release/tests/bench/libbench_call_loop.so [--rounds 15] [--json FILE]

Each rank makes the calls from a loop in C (call_loop.c), from NumPy and from PyTorch (where it is installed),
on one context and one memory. A round is a number of calls of each way, one way after the other; their order
changes from round to round. Printed on rank 0: C's time, and each way's difference and ratio to C's in the
same round; medians and ranges over the rounds.
"""

import argparse
import ctypes
import json
import statistics
import time

import numpy as np

import hvd

try:
    import torch

    import hvd.torch
except ImportError:
    torch = None

WEIGHTS = (1, 256, 4, 1024, 16, 64, 1, 512, 2, 128)  # of tensors as uneven as a network's
# What, bytes, calls in a round.
REDUCTIONS = {"8 B": (8, 400), "16 KiB": (1 << 14, 200), "64 KiB": (1 << 16, 100), "1 MiB": (1 << 20, 30),
              "200 tensors, 1 MiB": (1 << 20, 20), "200 tensors, 8 MiB": (1 << 23, 8),
              "200 tensors, 64 MiB": (1 << 26, 2)}
CHECKS = 400


def uneven(total, count=200):
    """Floats of each tensor, `total` in all; no tensor is empty."""
    weights = [WEIGHTS[i % len(WEIGHTS)] for i in range(count)]
    sizes = [max(1, total * weight // sum(weights)) for weight in weights]
    sizes[-1] += total - sum(sizes)
    return sizes


def reductions(loops, context, sizes, name):
    """By way: a function that makes so many calls."""
    arrays = [np.zeros(size, np.float32) for size in sizes]
    pointers = (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])
    lengths = (ctypes.c_int64 * len(arrays))(*sizes)

    def from_c(times):
        if loops.allreduce_loop(ctypes.c_void_p(context._handle.pointer), name.encode(), pointers, lengths,
                                len(arrays), times):
            raise SystemExit(1)

    def from_python(reduce, things):
        def calls(times):
            for _ in range(times):
                reduce(things, name, hvd.Sum)

        return calls

    single = len(arrays) == 1
    ways = {
        "C": from_c, "NumPy": from_python(hvd.allreduce_ if single else hvd.grouped_allreduce_,
                                          arrays[0] if single else arrays)
    }
    if torch is not None:
        tensors = [torch.from_numpy(array) for array in arrays]

        def torchs(times):
            reduce = hvd.torch.allreduce_ if single else hvd.torch.grouped_allreduce_
            things = tensors[0] if single else tensors
            for _ in range(times):
                reduce(things, name=name, op=hvd.Sum)

        ways["PyTorch"] = torchs
    return ways


def checks(loops):
    state = hvd.elastic.ArrayState(weights=np.zeros(16, np.float32))
    state.sync()

    def from_c(times):
        if loops.check_loop(ctypes.c_void_p(state._handle.pointer), times):
            raise SystemExit(1)

    def from_python(times):
        for _ in range(times):
            state.check_host_updates()

    return {"C": from_c, "Python": from_python}


def measured(ways, calls, rounds):
    """Microseconds a call of each way, by round."""
    took = {way: [] for way in ways}
    for way in ways.values():
        way(max(calls // 4, 1))
    for turn in range(rounds):
        for way in list(ways) if turn % 2 == 0 else list(ways)[::-1]:
            hvd.barrier("start")
            began = time.perf_counter_ns()
            ways[way](calls)
            hvd.barrier("end")
            took[way].append((time.perf_counter_ns() - began) / calls / 1e3)
    return took


def middle(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("loops", help="libbench_call_loop.so")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    given = parser.parse_args()
    context, found = hvd.init(), {}
    loops = ctypes.CDLL(given.loops)
    if torch is not None:
        torch.set_num_threads(1)
    for what in (*REDUCTIONS, "check"):
        if what == "check":
            ways, calls = checks(loops), CHECKS
        else:
            size, calls = REDUCTIONS[what]
            ways = reductions(loops, context, uneven(size // 4, 200 if "200" in what else 1), what)
        took = measured(ways, calls, given.rounds)
        found[what] = {"C": {"us": middle(took["C"])}}
        for way in list(ways)[1:]:
            pairs = list(zip(took[way], took["C"]))
            found[what][way] = {"over": middle([a - b for a, b in pairs]),
                                "ratio": middle([a / b for a, b in pairs])}
        if hvd.rank() == 0:
            us = found[what]["C"]["us"]
            row = [f"C {us['median']:.1f} us ({us['min']:.1f} to {us['max']:.1f})"]
            for way in list(ways)[1:]:
                over, ratio = found[what][way]["over"], found[what][way]["ratio"]
                row.append(f"{way} +{over['median']:.1f} us ({over['min']:.1f} to {over['max']:.1f}), "
                           f"{ratio['median']:.2f} times ({ratio['min']:.2f} to {ratio['max']:.2f})")
            print(f"{what}, {hvd.size()} ranks: " + " | ".join(row), flush=True)
    if hvd.rank() == 0:
        print("through the compiled module" if hvd.compiled else "through ctypes", flush=True)
        if given.json:
            with open(given.json, "w") as file:
                json.dump(found, file, indent=1)
    hvd.shutdown()


if __name__ == "__main__":
    main()

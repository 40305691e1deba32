#!/usr/bin/env python3
"""Allreduce of 8 B and 64 MiB from each language beside C, in one run: bench.py --program Rust=PATH --program
Go=PATH

The harness is that of tests/bench: all ranks are there at the same time, languages take turns in rounds, in
both orders. A time is a round's median; differences and ratios are taken within a round, and given with the
quartiles over the rounds. "C again" is another group of the same program: what it differs from C by is noise.
On a machine with other work, run it by `chrt -r 10`, which keeps that out. HVD_BENCH_BIN: where hvdrun and
ranks_hvd are. The last line is JSON.
"""

import argparse
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tests", "bench"))
import contenders  # noqa: E402
from collective_bench import Call, take_turns  # noqa: E402

MIB = 1 << 20
PLAN = {8: (20, 200, 10),
        64 * MIB: (5, 1, 10)}  # bytes: samples a round, calls a sample, rounds in each order


def group(name, size, program):
    def commands(directory):
        argv = [contenders.program("hvdrun"), "-np", str(size), "-H", "localhost:%d" % size,
                "-x", "HVD_BENCH_DIRECTORY=" + directory, "--", program]
        return [(argv, {})]
    return contenders.Group(name, size, commands)


def middle(values, digits):
    """The three quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": round(median, digits), "low": round(low, digits), "high": round(high, digits)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", action="append", default=[], metavar="LANGUAGE=PATH")
    parser.add_argument("--ranks", type=int, default=2)
    arguments = parser.parse_args()
    programs = dict.fromkeys(("C", "C again"), contenders.program("ranks_hvd"))
    programs.update(program.split("=", 1) for program in arguments.program)
    groups, result = {}, {}
    try:
        for name, program in programs.items():
            groups[name] = group(name.replace(" ", "-"), arguments.ranks, program)
        for size, (samples, batch, rounds) in PLAN.items():
            calls = {name: Call(each, "allreduce", size, samples, batch) for name, each in groups.items()}
            times = take_turns(calls, rounds)
            for name, values in take_turns(dict(reversed(calls.items())), rounds).items():
                times[name] += values
            for name, values in times.items():
                entry = result.setdefault("64 MiB" if size == 64 * MIB else "8 B", {})[name] = {
                    "median_us": round(statistics.median(values), 2), "best_us": round(calls[name].best, 2)}
                if name != "C":
                    pairs = list(zip(values, times["C"]))
                    entry["over_c"] = middle([a / c for a, c in pairs], 3)
                    entry["minus_c_us"] = middle([a - c for a, c in pairs], 2)
                    entry["best_over_c"] = round(calls[name].best / calls["C"].best, 3)
                    entry["best_minus_c_us"] = round(calls[name].best - calls["C"].best, 2)
    finally:
        for each in groups.values():
            each.close()
    for size, row in result.items():
        for name, entry in row.items():
            print(size, name, entry)
    print(json.dumps({"languages": {"ranks": arguments.ranks, **result}}))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Allreduce from Python beside C, both through libhvd, in turns: python_bench [--quick]

The last line is a JSON object: what 64 MiB take from Python as a multiple of what they take from C, and how many
microseconds longer 8 bytes take.
"""

import json
import os
import statistics
import subprocess
import sys

import contenders
from collective_bench import MIB, Call, log, summary, take_turns
from contenders import BIN, HERE, Group, Unavailable

PLAN = {8: (20, 50, 9), MIB: (20, 1, 9), 64 * MIB: (5, 1, 9)}
QUICK = {8: (10, 50, 3), MIB: (10, 1, 3), 64 * MIB: (3, 1, 3)}
PACKAGE = os.environ.get("HVD_BENCH_PACKAGE", os.path.join(HERE, "..", "..", "bindings", "python"))


def interpreter():
    for python in (sys.executable, "/usr/bin/python3"):
        if os.path.exists(python) and subprocess.run([python, "-c", "import numpy"], stderr=subprocess.DEVNULL).returncode == 0:
            return python
    raise Unavailable("NumPy is not installed (scripts/install-deps.sh bindings)")


def python_ranks(size):
    settings = {"PYTHONPATH": PACKAGE, "HVD_LIBRARY": os.path.join(BIN, "..", "lib"), "OMP_NUM_THREADS": "1"}

    def commands(directory):
        argv = [contenders.program("hvdrun"), "-np", str(size), "-H", "localhost:%d" % size]
        for key, value in {"HVD_BENCH_DIRECTORY": directory, **settings}.items():
            argv += ["-x", "%s=%s" % (key, value)]
        return [(argv + ["--", interpreter(), os.path.join(HERE, "ranks_python.py")], {})]
    return Group("python", size, commands)


def main():
    plan = QUICK if "--quick" in sys.argv else PLAN
    groups, report = {}, {}
    try:
        groups["c"] = contenders.hvd("c", 2)
        groups["python"] = python_ranks(2)
        for size, (samples, batch, rounds) in plan.items():
            calls = {name: Call(group, "allreduce", size, samples, batch) for name, group in groups.items()}
            medians = take_turns(calls, rounds)
            report[str(size)] = {name: summary(calls[name], medians[name]) for name in groups}
            report[str(size)]["python_to_c"] = round(statistics.median(
                p / c for p, c in zip(medians["python"], medians["c"])), 3)
            report[str(size)]["python_minus_c_us"] = round(statistics.median(
                p - c for p, c in zip(medians["python"], medians["c"])), 2)
            log("%9d B  C %10.1f us  Python %10.1f us" % (size, *(statistics.median(medians[n]) for n in ("c", "python"))))
    except Unavailable as why:
        log("python_bench: %s" % why)
    finally:
        for group in groups.values():
            group.close()
    print(json.dumps({"bench": "python", "ranks": 2, "allreduce": report,
                      "python_to_c_64mib": report.get(str(64 * MIB), {}).get("python_to_c"),
                      "python_minus_c_8b_us": report.get("8", {}).get("python_minus_c_us")}))


if __name__ == "__main__":
    main()

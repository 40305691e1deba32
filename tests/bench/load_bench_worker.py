"""A worker of load_bench: says how long it took to its first generation, then trains for a while."""

import importlib
import json
import os
import time

import numpy as np

import hvd


def seconds_since_start():
    """Of this process, by the kernel; to a clock tick (10 ms)."""
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def main():
    if os.environ.get("HVD_BENCH_IMPORT"):
        importlib.import_module(os.environ["HVD_BENCH_IMPORT"])
    imported = seconds_since_start()
    hvd.init()
    print(json.dumps({"imported": imported, "first": seconds_since_start()}), flush=True)
    gradient = np.ones(1024, np.float32)
    end = time.monotonic() + float(os.environ["HVD_BENCH_SECONDS"])
    more = np.ones(1, np.int32)
    while more[0]:
        hvd.allreduce_(gradient, "gradient")
        time.sleep(0.05)
        more[0] = time.monotonic() < end
        hvd.broadcast_(more, 0, "more")
    hvd.shutdown()


if __name__ == "__main__":
    main()

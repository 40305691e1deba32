"""What an allreduce costs where many names repeat, as TensorFlow's variables do, from C: 160 and 1,000 names
beside 40.

hvdrun -np 2 -H localhost:2 -- python tests/bench/names_bench.py
build/release/tests/bench/libbench_call_loop.so

Up to 4,539 names meet on the board (docs/architecture.md). Data of 49 to 4,080 bytes lie there for 508 of
them, and move in the backend for the others. Printed on rank 0: microseconds a call, and the ratio to 40
names in the same round; medians and ranges of 15 rounds.
"""

import ctypes
import sys
import time

import numpy as np
from python_call_bench import middle

import hvd

SIZES, NAMES, ROUNDS = (8, 1 << 10, 16 << 10, 64 << 10), (40, 160, 1000), 15


def main():
    context, loops = hvd.init(), ctypes.CDLL(sys.argv[1])
    for size in SIZES:
        data = np.zeros(max(NAMES) * size // 4, np.float32)
        took = {names: [] for names in NAMES}

        def calls(names, data=data, size=size):
            hvd.barrier("start")
            began, times = time.perf_counter_ns(), max(2, 1600 // names)
            if loops.names_loop(ctypes.c_void_p(context._handle.pointer), ctypes.c_void_p(data.ctypes.data),
                                ctypes.c_int64(size // 4), names, times):
                raise SystemExit(1)
            return (time.perf_counter_ns() - began) / (times * names) / 1e3

        for turn in range(-1, ROUNDS):
            for i in range(len(NAMES)):
                names = NAMES[(i + turn) % len(NAMES)]
                took[names].append(calls(names))
        if hvd.rank() == 0:
            few = took[NAMES[0]][1:]
            for names in NAMES:
                us, ratio = middle(took[names][1:]), middle([a / b for a, b in zip(took[names][1:], few)])
                text = ["{median:.2f} ({min:.2f} to {max:.2f})".format(**one) for one in (us, ratio)]
                what = f"{size} B, {hvd.size()} ranks, {names} names"
                print(f"{what}: {text[0]} us, {text[1]} times", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()

"""What an allreduce costs where many names repeat, as TensorFlow's variables do: 160 names beside 40, from C.

hvdrun -np 2 -H localhost:2 -- python tests/bench/names_bench.py
build/release/tests/bench/libbench_call_loop.so

Up to 507 names meet on the board (docs/architecture.md). Data of 49 to 4,080 bytes lie there for 60 of them,
and move in the backend for the others. Printed on rank 0: microseconds a call, and the ratio in the same
round; medians and ranges of 15 rounds.
"""

import ctypes
import sys
import time

import numpy as np
from python_call_bench import middle

import hvd

SIZES, MANY, FEW, ROUNDS = (8, 1 << 10, 16 << 10, 64 << 10), 160, 40, 15


def main():
    context, loops = hvd.init(), ctypes.CDLL(sys.argv[1])
    for size in SIZES:
        data = np.zeros(MANY * size // 4, np.float32)
        took = {FEW: [], MANY: []}

        def calls(names, data=data, size=size):
            hvd.barrier("start")
            began, times = time.perf_counter_ns(), 1600 // names
            if loops.names_loop(ctypes.c_void_p(context._handle.pointer), ctypes.c_void_p(data.ctypes.data),
                                ctypes.c_int64(size // 4), names, times):
                raise SystemExit(1)
            return (time.perf_counter_ns() - began) / (times * names) / 1e3

        for turn in range(-1, ROUNDS):
            for names in (FEW, MANY) if turn % 2 else (MANY, FEW):
                took[names].append(calls(names))
        if hvd.rank() == 0:
            us = [middle(took[names][1:]) for names in (FEW, MANY)]
            us.append(middle([many / few for few, many in zip(took[FEW][1:], took[MANY][1:])]))
            text = ["{median:.2f} ({min:.2f} to {max:.2f})".format(**one) for one in us]
            print(f"{size} B, {hvd.size()} ranks: {FEW} names {text[0]} us | {MANY} names {text[1]} us, "
                  f"{text[2]} times", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
